// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/static_pages.h"

#include "tests/support/scratch_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace muster::dashboard {
namespace {

class StaticPagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_ / "root" / "assets");
    std::ofstream(folder_ / "root" / "index.html") << "start";
    std::ofstream(folder_ / "root" / "assets" / "a.js") << "code";
    std::ofstream(folder_ / "secret") << "secret";
  }

  test::ScratchFolder folder_;
};

TEST_F(StaticPagesTest, ServesTheStartPageAndAssets) {
  const StaticPages pages{folder_ / "root"};
  const HttpResponse start = pages.find({});
  EXPECT_EQ(start.body, "start");
  EXPECT_EQ(start.content_type, "text/html; charset=utf-8");
  const HttpResponse asset = pages.find({"assets", "a.js"});
  EXPECT_EQ(asset.body, "code");
  EXPECT_EQ(asset.content_type, "text/javascript; charset=utf-8");
  EXPECT_NE(asset.headers.front().second.find("immutable"), std::string::npos);
}

TEST_F(StaticPagesTest, NeverLeavesItsFolder) {
  const StaticPages pages{folder_ / "root"};
  std::filesystem::create_symlink(folder_ / "secret", folder_ / "root" / "link");
  EXPECT_EQ(pages.find({"link"}).status, 404);
  EXPECT_EQ(pages.find({"..", "secret"}).status, 404);
  EXPECT_EQ(pages.find({"../secret"}).status, 404);
  EXPECT_EQ(pages.find({(folder_ / "secret").string()}).status, 404);
}

TEST_F(StaticPagesTest, DoesNotServeFolders) {
  EXPECT_EQ(StaticPages{folder_ / "root"}.find({"assets"}).status, 404);
}

TEST(EmbeddedPages, HoldAStartPage) {
  const HttpResponse start = StaticPages{{}}.find({});
  EXPECT_EQ(start.status, 200);
  EXPECT_NE(start.body.find("<!doctype html>"), std::string::npos);
  EXPECT_EQ(StaticPages{{}}.find({"nothing.js"}).status, 404);
}

}  // namespace
}  // namespace muster::dashboard
