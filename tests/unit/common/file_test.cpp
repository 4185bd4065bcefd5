// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scratch_folder.h"

#include <muster/common/file.h>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace muster {

namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator{folder_}) {
      found.push_back(entry.path().filename().string());
    }
    return found;
  }

  test::ScratchFolder scratch_;
  fs::path folder_{scratch_.path()};
};

// While it lives, no file of this process may grow over `bytes`: writes fail with EFBIG.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }

  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  FileSizeLimit(FileSizeLimit&&) = delete;
  FileSizeLimit& operator=(FileSizeLimit&&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int){nullptr};
};

using WriteFileDurably = FileTest;
using ReadFile = FileTest;
using FileLockTest = FileTest;
using Folders = FileTest;

TEST_F(WriteFileDurably, PermissionsFollowTheUmask) {
  const mode_t before = ::umask(002);
  ASSERT_TRUE(write_file_durably(folder_ / "shared", "content").ok());
  ::umask(before);

  struct stat info {};

  ASSERT_EQ(::stat((folder_ / "shared").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0664U);
}

TEST_F(WriteFileDurably, AFifoIsNoRegularFileAndIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(read_regular_file(folder_ / "fifo").status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(read_regular_file(folder_ / "none").status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(write_file_durably(folder_ / "file", "content").ok());
  EXPECT_EQ(read_regular_file(folder_ / "file").value(), "content");
}

TEST_F(WriteFileDurably, ReplacesTheContentAndLeavesNothingElse) {
  ASSERT_TRUE(write_file_durably(folder_ / "a", "first, longer content").ok());
  ASSERT_TRUE(write_file_durably(folder_ / "a", "second").ok());
  EXPECT_EQ(read_file(folder_ / "a").value(), "second");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(WriteFileDurably, KeepsBytesThatAreNotText) {
  const std::string content{"\0\xff\n\0", 4};
  ASSERT_TRUE(write_file_durably(folder_ / "a", content).ok());
  EXPECT_EQ(read_file(folder_ / "a").value(), content);
}

TEST_F(WriteFileDurably, FailedWriteKeepsTheOldContentAndTakesNoRoom) {
  ASSERT_TRUE(write_file_durably(folder_ / "a", "old").ok());
  Status status;
  {
    const FileSizeLimit limit{1000};
    status = write_file_durably(folder_ / "a", std::string(5000, 'x'));
  }
  EXPECT_EQ(status.code(), StatusCode::kIoError) << status.to_string();
  EXPECT_NE(status.message().find((folder_ / "a").string()), std::string::npos);
  EXPECT_EQ(read_file(folder_ / "a").value(), "old");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(WriteFileDurably, MissingFolderIsNamed) {
  const Status status = write_file_durably(folder_ / "none" / "a", "x");
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_NE(status.message().find("none/a"), std::string::npos) << status.message();
}

// The kernel's own full device: every write fails with ENOSPC.
TEST(WriteAll, FullDeviceIsResourceExhausted) {
  const FileDescriptor full{::open("/dev/full", O_WRONLY | O_CLOEXEC)};
  ASSERT_TRUE(full.valid());
  const std::string text = "some bytes";
  const Status status =
      write_all(full.get(), std::as_bytes(std::span{text.data(), text.size()}), "/dev/full");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
  EXPECT_EQ(status.message(), "/dev/full: No space left on device");
}

TEST_F(ReadFile, MissingFileIsNotFoundAndNamed) {
  const auto content = read_file(folder_ / "none");
  EXPECT_EQ(content.status().code(), StatusCode::kNotFound);
  EXPECT_NE(content.status().message().find("none"), std::string::npos);
}

TEST_F(ReadFile, FolderIsAnIoError) {
  EXPECT_EQ(read_file(folder_).status().code(), StatusCode::kIoError);
}

TEST_F(ReadFile, LimitIsInclusive) {
  ASSERT_TRUE(write_file_durably(folder_ / "a", std::string(1000, 'x')).ok());
  EXPECT_TRUE(read_file(folder_ / "a", 1000).ok());
  EXPECT_EQ(read_file(folder_ / "a", 999).status().code(), StatusCode::kResourceExhausted);
}

TEST_F(FileLockTest, SecondHolderIsToldWhoHoldsIt) {
  const auto first = FileLock::acquire(folder_ / "lock", "collector, pid 12");
  ASSERT_TRUE(first.ok());
  const auto second = FileLock::acquire(folder_ / "lock", "another");
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists);
  EXPECT_NE(second.status().message().find("collector, pid 12"), std::string::npos)
      << second.status().message();
}

TEST_F(FileLockTest, CanBeTakenAgainAfterItsOwnerIsGone) {
  {
    const auto first = FileLock::acquire(folder_ / "lock", "a note that is long");
    ASSERT_TRUE(first.ok());
  }
  ASSERT_TRUE(FileLock::acquire(folder_ / "lock", "short").ok());
  EXPECT_EQ(read_file(folder_ / "lock").value(), "short");
}

TEST_F(FileLockTest, MovedLockStillHolds) {
  auto first = FileLock::acquire(folder_ / "lock", "x");
  ASSERT_TRUE(first.ok());
  const FileLock moved = std::move(first).value();
  EXPECT_FALSE(FileLock::acquire(folder_ / "lock", "y").ok());
}

TEST_F(Folders, AreCreatedWithTheirParentsAndMayExist) {
  ASSERT_TRUE(muster::create_directories(folder_ / "a" / "b").ok());
  EXPECT_TRUE(muster::create_directories(folder_ / "a" / "b").ok());
  EXPECT_TRUE(fs::is_directory(folder_ / "a" / "b"));
}

TEST_F(Folders, FileInTheWayIsAnError) {
  ASSERT_TRUE(write_file_durably(folder_ / "a", "x").ok());
  const Status status = muster::create_directories(folder_ / "a" / "b");
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_NE(status.message().find("a/b"), std::string::npos);
}

TEST_F(Folders, SyncOfAMissingFolderIsAnError) {
  EXPECT_TRUE(fsync_directory(folder_).ok());
  EXPECT_EQ(fsync_directory(folder_ / "none").code(), StatusCode::kIoError);
}

TEST_F(Folders, FreeBytesAreThoseOfTheFileSystem) {
  EXPECT_GT(free_bytes(folder_).value(), 0U);
  EXPECT_FALSE(free_bytes(folder_ / "none").ok());
}

TEST(FileDescriptor, ClosesOnceAndMovesOwnership) {
  FileDescriptor first{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  const int number = first.get();
  {
    const FileDescriptor second = std::move(first);
    EXPECT_FALSE(first.valid());
    EXPECT_EQ(second.get(), number);
    EXPECT_NE(::fcntl(number, F_GETFD), -1);
  }
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

TEST(FileDescriptor, ReleaseGivesUpOwnership) {
  FileDescriptor owner{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  const int number = owner.release();
  EXPECT_FALSE(owner.valid());
  EXPECT_EQ(::close(number), 0);
}

}  // namespace

}  // namespace muster
