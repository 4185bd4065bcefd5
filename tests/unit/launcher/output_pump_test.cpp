// SPDX-License-Identifier: Apache-2.0
#include "launcher/src/output_pump.h"

#include "tests/support/deadlines.h"
#include "tests/support/scratch_folder.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <filesystem>

namespace muster::launcher {

namespace fs = std::filesystem;

class OutputPumpTest : public ::testing::Test {
 protected:
  struct Pipe {
    FileDescriptor read;
    FileDescriptor write;
  };

  static Pipe make_pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    return {FileDescriptor{ends[0]}, FileDescriptor{ends[1]}};
  }

  static void put(const FileDescriptor& fd, const std::string& text) {
    ASSERT_TRUE(
        write_all(fd.get(), std::as_bytes(std::span{text.data(), text.size()}), "pipe").ok());
  }

  // Reads what has been written to the pipe; its write end must be closed.
  static std::string take(const FileDescriptor& fd) {
    std::string all;
    std::array<char, 4096> buffer{};
    for (ssize_t count = 0; (count = ::read(fd.get(), buffer.data(), buffer.size())) > 0;) {
      all.append(buffer.data(), static_cast<std::size_t>(count));
    }
    return all;
  }

  test::ScratchFolder scratch_;
  fs::path folder_{scratch_.path()};
};

TEST_F(OutputPumpTest, CutsLinesThatAreTooLongForTheConsoleButNotForTheLog) {
  Pipe console = make_pipe();
  Pipe rank = make_pipe();
  const std::string line(20000, 'x');
  {
    OutputPump pump{console.write.get()};
    ASSERT_TRUE(pump.add("7", std::move(rank.read), folder_ / "a" / "log").ok());
    put(rank.write, line + "\n");
    rank.write = FileDescriptor{};
    pump.drain(test::soon());
  }
  console.write = FileDescriptor{};
  EXPECT_EQ(read_file(folder_ / "a" / "log").value(), line + "\n");
  EXPECT_EQ(
      take(console.read),
      "[7] " + std::string(8192, 'x') + "\n[7] " + std::string(8192, 'x') + "\n[7] " +
          std::string(20000 - 16384, 'x') + "\n");
}

TEST_F(OutputPumpTest, ShowsAProgressBarOnceASecondAndItsEnd) {
  const ManualClock clock;  // It does not move: the first state is shown, and the last.
  Pipe console = make_pipe();
  Pipe rank = make_pipe();
  const std::string bar = "\r 10 %\r 20 %\r 30 %\r100 %\n";
  {
    OutputPump pump{console.write.get(), clock};
    ASSERT_TRUE(pump.add("0", std::move(rank.read), folder_ / "log").ok());
    put(rank.write, bar + "after\r\n\r\nend\r");
    rank.write = FileDescriptor{};
    pump.drain(Deadline{});
  }
  console.write = FileDescriptor{};
  EXPECT_EQ(read_file(folder_ / "log").value(), bar + "after\r\n\r\nend\r");
  EXPECT_EQ(take(console.read), "[0]  10 %\n[0] 100 %\n[0] after\n[0] \n[0] end\n");
}

TEST_F(OutputPumpTest, KeepsLoggingWhenTheConsoleIsClosed) {
  Pipe console = make_pipe();
  console.read = FileDescriptor{};
  Pipe rank = make_pipe();
  OutputPump pump{console.write.get()};
  ASSERT_TRUE(pump.add("0", std::move(rank.read), folder_ / "log").ok());
  for (int i = 0; i < 100; ++i) {
    put(rank.write, "line\n");
  }
  rank.write = FileDescriptor{};
  pump.drain(test::soon());
  EXPECT_EQ(read_file(folder_ / "log").value().size(), 500U);
}

TEST_F(OutputPumpTest, ARankNeverWaitsForAConsoleThatIsNotRead) {
  Pipe console = make_pipe();  // Nobody reads it.
  Pipe rank = make_pipe();
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  OutputPump pump{console.write.get()};
  ASSERT_TRUE(pump.add("0", std::move(rank.read), folder_ / "log").ok());
  const std::string block = std::string(1023, 'y') + "\n";
  for (std::size_t written = 0; written < kBytes; written += block.size()) {
    put(rank.write, block);
  }
  rank.write = FileDescriptor{};
  pump.drain(test::soon());
  EXPECT_EQ(read_file(folder_ / "log").value().size(), kBytes);
  EXPECT_GT(pump.dropped_line_count(), 2000);
}

TEST_F(OutputPumpTest, DrainGivesUpOnAPipeThatSomebodyHoldsOpen) {
  Pipe rank = make_pipe();
  OutputPump pump{-1};
  ASSERT_TRUE(pump.add("0", std::move(rank.read), folder_ / "log").ok());
  put(rank.write, "before\n");
  pump.drain(Deadline::after(std::chrono::seconds{2}));
  EXPECT_EQ(read_file(folder_ / "log").value(), "before\n");
}

}  // namespace muster::launcher
