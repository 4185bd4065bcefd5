// SPDX-License-Identifier: Apache-2.0
#include <muster/common/expected.h>
#include <muster/common/status.h>

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>

namespace muster {

namespace {

TEST(Status, DefaultIsSuccess) {
  EXPECT_TRUE(Status{}.ok());
  EXPECT_EQ(Status{}.to_string(), "ok");
}

TEST(Status, CarriesCodeAndMessage) {
  const Status status = data_loss("chunk 7 has another hash");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(status.to_string(), "data loss: chunk 7 has another hash");
}

TEST(Status, FactoriesJoinTheirParts) {
  const int head_dim = 4;
  const Status status = invalid_argument("head_dim must be between 8 and 256, got ", head_dim);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "head_dim must be between 8 and 256, got 4");
  const std::string text = "one string";
  EXPECT_EQ(data_loss(text).message(), text);
  EXPECT_EQ(data_loss(std::string_view{text}).message(), text);
}

TEST(Status, EveryFactoryGivesItsCode) {
  EXPECT_EQ(invalid_argument("a", 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(not_found("a", 1).code(), StatusCode::kNotFound);
  EXPECT_EQ(already_exists("a", 1).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(failed_precondition("a", 1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(unavailable("a", 1).code(), StatusCode::kUnavailable);
  EXPECT_EQ(deadline_exceeded("a", 1).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(aborted("a", 1).code(), StatusCode::kAborted);
  EXPECT_EQ(data_loss("a", 1).code(), StatusCode::kDataLoss);
  EXPECT_EQ(resource_exhausted("a", 1).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(version_mismatch("a", 1).code(), StatusCode::kVersionMismatch);
  EXPECT_EQ(unimplemented("a", 1).code(), StatusCode::kUnimplemented);
  EXPECT_EQ(internal_error("a", 1).code(), StatusCode::kInternal);
}

TEST(Status, ContextGoesInFrontAndKeepsTheCode) {
  const Status status = not_found("no such file").context("manifest").context("restore");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "restore: manifest: no such file");
}

TEST(Status, ContextOfASuccessStaysASuccess) {
  EXPECT_TRUE(Status{}.context("restore").ok());
}

TEST(Status, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  constexpr int kLast = static_cast<int>(StatusCode::kInternal);
  for (int code = 0; code <= kLast; ++code) {
    names.insert(to_string(static_cast<StatusCode>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kLast) + 1);
  EXPECT_EQ(names.count("unknown"), 0U);
}

TEST(Status, FullDiskIsResourceExhausted) {
  EXPECT_EQ(io_error("/data/x", ENOSPC).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(io_error("/data/x", EDQUOT).code(), StatusCode::kResourceExhausted);
}

TEST(Status, OtherRefusalsOfTheSystemAreIoErrorsThatNameTheFile) {
  const Status status = io_error("/data/x", EACCES);
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_EQ(status.message(), "/data/x: Permission denied");
}

Status pass_through(const Status& inner, int& reached) {
  MUSTER_RETURN_IF_ERROR(inner);
  ++reached;
  return {};
}

TEST(ReturnIfError, LeavesOnlyOnAnError) {
  int reached = 0;
  EXPECT_TRUE(pass_through({}, reached).ok());
  EXPECT_EQ(pass_through(aborted("stop"), reached).message(), "stop");
  EXPECT_EQ(reached, 1);
}

Expected<int> half(int value) {
  if (value % 2 != 0) {
    return invalid_argument(std::to_string(value) + " is odd");
  }
  return value / 2;
}

Expected<int> quarter(int value) {
  MUSTER_ASSIGN_OR_RETURN(const int first, half(value));
  int second = 0;
  MUSTER_ASSIGN_OR_RETURN(second, half(first));
  return second;
}

TEST(AssignOrReturn, DeclaresAssignsOrLeaves) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(6).status().message(), "3 is odd");
  EXPECT_EQ(quarter(5).status().message(), "5 is odd");
}

Expected<std::unique_ptr<int>> boxed(int value) {
  return std::make_unique<int>(value);
}

Expected<int> unboxed(int value) {
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<int> box, boxed(value));
  return *box;
}

TEST(AssignOrReturn, MovesValuesThatCannotBeCopied) {
  EXPECT_EQ(unboxed(7).value(), 7);
}

TEST(Expected, HoldsAValueOrAnError) {
  const Expected<std::string> good{std::string{"x"}};
  EXPECT_TRUE(good.ok());
  EXPECT_TRUE(good.status().ok());
  EXPECT_EQ(good->size(), 1U);
  const Expected<std::string> bad{unavailable("peer is gone")};
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.value_or("fallback"), "fallback");
}

TEST(Expected, ValueOfAnErrorFailsACheckThatSaysTheError) {
  const Expected<int> bad{unavailable("peer is gone")};
  try {
    static_cast<void>(bad.value());
    FAIL() << "value() of an error returned";
  } catch (const CheckFailure& failure) {
    EXPECT_NE(std::string{failure.what()}.find("peer is gone"), std::string::npos);
  }
}

TEST(Expected, CannotBeBuiltFromASuccess) {
  EXPECT_THROW(Expected<int>{Status{}}, CheckFailure);
}

TEST(Check, NamesFileExpressionAndMessage) {
  const int heads = 3;
  try {
    MUSTER_CHECK(heads % 2 == 0, "heads must be even, not " + std::to_string(heads));
    FAIL() << "the check passed";
  } catch (const CheckFailure& failure) {
    const std::string text = failure.what();
    EXPECT_NE(text.find("status_test.cpp:"), std::string::npos);
    EXPECT_NE(text.find("heads % 2 == 0"), std::string::npos);
    EXPECT_NE(text.find("not 3"), std::string::npos);
  }
}

TEST(Check, MessageIsBuiltOnlyOnFailure) {
  bool built = false;
  const auto message = [&] {
    built = true;
    return std::string{};
  };
  MUSTER_CHECK(true, message());
  EXPECT_FALSE(built);
}

}  // namespace

}  // namespace muster
