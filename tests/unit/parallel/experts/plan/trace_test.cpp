// SPDX-License-Identifier: Apache-2.0
// Traces of plans: what is written is read, and every damage is one clear error.
#include "parallel/src/experts/trace/format.h"
#include "tests/support/scratch_folder.h"
#include "tests/unit/parallel/experts/plan/case.h"

#include <muster/parallel/experts/trace.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace muster::parallel::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class EpTrace : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = folder_ / "rank0.ep";
    header_.shape.ranks = 2;
    header_.shape.experts = 6;
    header_.shape.top_k = 2;
    header_.shape.tokens_max = 8;
    header_.shape.padding = 4;
    header_.balance.mode = EpBalanceMode::kTolerant;
    header_.balance.tolerance = 0.125;
    header_.balance.speeds = {1, 0.75};
  }

  Expected<EpTraceWriter> open(EpTraceOptions options = {}) {
    return EpTraceWriter::open(path_, header_, options);
  }

  // `count` records of layers 0, 1, 0, ... of steps 0, 0, 1, ...
  void write(int count, EpTraceOptions options = {}) {
    EpTraceWriter writer = open(options).value();
    for (int i = 0; i < count; ++i) {
      const EpPlan& one = plan(i);
      const Status status = writer.append(i % 2, i / 2, one, choices_[0]);
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  }

  const EpPlan& plan(int seed) {
    FastRandom random{static_cast<std::uint64_t>(seed)};
    choices_ = draw_choices(header_.shape, {5, 8}, Routing::kSkewed, random);
    plan_ = plan_of(header_.shape, header_.balance, choices_, 0);
    return plan_;
  }

  void change_byte(std::int64_t offset) {
    std::fstream file{path_, std::ios::in | std::ios::out | std::ios::binary};
    file.seekg(offset);
    const int byte = file.get();
    file.seekp(offset);
    file.put(static_cast<char>(byte ^ 0x40));
  }

  // Records until the end or an error, which is returned.
  Status read_all(int& count) {
    count = 0;
    auto reader = EpTraceReader::open(path_);
    if (!reader.ok()) {
      return reader.status();
    }
    EpTraceRecord record;
    while (true) {
      const auto more = reader->next(record);
      if (!more.ok() || !*more) {
        return more.status();
      }
      ++count;
    }
  }

  muster::test::ScratchFolder scratch_;
  fs::path folder_{scratch_.path()};
  fs::path path_;
  EpTraceHeader header_;
  Choices choices_;
  EpPlan plan_;
};

TEST_F(EpTrace, ReadsWhatWasWritten) {
  write(3);
  EpTraceReader reader = EpTraceReader::open(path_).value();
  EXPECT_EQ(reader.header().shape, header_.shape);
  EXPECT_EQ(reader.header().balance.mode, EpBalanceMode::kTolerant);
  EXPECT_EQ(reader.header().balance.tolerance, 0.125);
  EXPECT_EQ(reader.header().balance.speeds, header_.balance.speeds);
  EpTraceRecord record;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(reader.next(record).value());
    const EpPlan& expected = plan(i);
    EXPECT_EQ(record.layer, i % 2);
    EXPECT_EQ(record.step, i / 2);
    EXPECT_EQ(record.rank, 0);
    EXPECT_EQ(record.tokens, 5);
    EXPECT_EQ(record.plan_hash, expected.hash);
    EXPECT_EQ(record.counts, expected.counts);
    EXPECT_EQ(record.choices, choices_[0]);
    EXPECT_EQ(record.statistics.rows_moved, expected.statistics.rows_moved);
    EXPECT_EQ(record.statistics.rank_imbalance, expected.statistics.rank_imbalance);
    EXPECT_EQ(record.statistics.pad_rows, expected.statistics.pad_rows);
  }
  EXPECT_FALSE(reader.next(record).value());
  EXPECT_FALSE(reader.next(record).value());
}

TEST_F(EpTrace, ARecordWhoseFieldsCannotBeIsDamageAlsoIfItsHashFits) {
  EpPlan wrong = plan(1);
  const auto decodes = [&] {
    std::vector<std::byte> bytes;
    encode_record(0, 0, wrong, choices_[0], bytes);
    EpTraceRecord record;
    std::string why;
    const bool fits = decode_record(header_, bytes, record, why);
    EXPECT_EQ(fits, why.empty()) << why;
    return fits;
  };
  EXPECT_TRUE(decodes());
  wrong.rank = 2;
  EXPECT_FALSE(decodes());
  wrong.rank = 0;
  wrong.tokens = 9;
  EXPECT_FALSE(decodes());
  wrong.tokens = 4;  // the choices are those of 5
  EXPECT_FALSE(decodes());
}

TEST_F(EpTrace, WithoutChoicesKeepsTheCounts) {
  EpTraceOptions options;
  options.choices = false;
  write(1, options);
  EpTraceReader reader = EpTraceReader::open(path_).value();
  EpTraceRecord record;
  ASSERT_TRUE(reader.next(record).value());
  EXPECT_EQ(record.tokens, 5);
  EXPECT_THAT(record.choices, IsEmpty());
  EXPECT_EQ(record.counts, plan(0).counts);
}

TEST_F(EpTrace, RecordsTheStepsItIsAskedFor) {
  EpTraceOptions options;
  options.every = 2;
  write(8, options);  // steps 0, 0, 1, 1, 2, 2, 3, 3
  int count = 0;
  EXPECT_TRUE(read_all(count).ok());
  EXPECT_EQ(count, 4);
}

TEST_F(EpTrace, GoesOnWhereAnotherRunStopped) {
  write(2);
  write(3);
  int count = 0;
  EXPECT_TRUE(read_all(count).ok());
  EXPECT_EQ(count, 5);
}

TEST_F(EpTrace, GoesOnAfterARecordThatACrashCut) {
  write(2);
  const auto whole = fs::file_size(path_);
  write(1);
  for (const std::uintmax_t size : {whole + 3, whole + 9, fs::file_size(path_) - 1}) {
    fs::resize_file(path_, size);
    int count = 0;
    const Status status = read_all(count);
    EXPECT_EQ(count, 2);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("record 2, at byte " + std::to_string(whole)));
    EXPECT_THAT(status.message(), HasSubstr("'truncate -s " + std::to_string(whole)));
    EXPECT_THAT(status.message(), HasSubstr(path_.string()));
    write(1);
    EXPECT_TRUE(read_all(count).ok());
    EXPECT_EQ(count, 3);
  }
}

TEST_F(EpTrace, RefusesTheRunOfAnotherShape) {
  write(1);
  header_.shape.padding = 8;
  const auto writer = open();
  EXPECT_EQ(writer.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(writer.status().message(), HasSubstr("another shape"));
}

TEST_F(EpTrace, StaysWithinItsLimit) {
  write(1);
  const auto one = static_cast<std::int64_t>(fs::file_size(path_));
  EpTraceOptions options;
  options.bytes_max = one + one / 2;
  EpTraceWriter writer = open(options).value();
  for (int i = 0; i < 2; ++i) {
    const EpPlan& again = plan(0);
    const Status status = writer.append(0, 0, again, choices_[0]);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(), HasSubstr("at most " + std::to_string(options.bytes_max)));
  }
  EXPECT_EQ(static_cast<std::int64_t>(fs::file_size(path_)), one);
}

TEST_F(EpTrace, FindsAnyChangedByte) {
  write(3);
  const auto size = static_cast<std::int64_t>(fs::file_size(path_));
  const std::int64_t header = EpTraceReader::open(path_).value().offset();
  for (std::int64_t offset = 0; offset < size; ++offset) {
    change_byte(offset);
    int count = 0;
    const Status status = read_all(count);
    const bool of_version = offset >= 8 && offset < 12;
    ASSERT_EQ(status.code(), of_version ? StatusCode::kVersionMismatch : StatusCode::kDataLoss)
        << "byte " << offset;
    ASSERT_THAT(status.message(), HasSubstr(path_.string()));
    ASSERT_EQ(
        count, offset < header ? 0 : static_cast<int>((offset - header) * 3 / (size - header)));
    change_byte(offset);
  }
  int count = 0;
  EXPECT_TRUE(read_all(count).ok());
  EXPECT_EQ(count, 3);
}

TEST_F(EpTrace, AWriterLeavesADamagedFileAlone) {
  write(3);
  const auto size = fs::file_size(path_);
  for (std::int64_t offset = 0; offset < static_cast<std::int64_t>(size); offset += 1) {
    change_byte(offset);
    ASSERT_FALSE(open().ok()) << "byte " << offset;
    ASSERT_EQ(fs::file_size(path_), size) << "byte " << offset;
    change_byte(offset);
  }
}

TEST_F(EpTrace, IsNotWhatAnotherFileIs) {
  int count = 0;
  EXPECT_EQ(read_all(count).code(), StatusCode::kNotFound);
  std::ofstream{path_} << "step,layer\n1,2\n and some more text\n";
  EXPECT_THAT(read_all(count).message(), HasSubstr("not a trace of expert plans"));
  EXPECT_EQ(open().status().code(), StatusCode::kDataLoss);
  std::ofstream{path_} << "";
  EXPECT_EQ(read_all(count).code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace muster::parallel::testing
