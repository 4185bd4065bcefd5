// SPDX-License-Identifier: Apache-2.0
// Creation of exchange and pool: what does not fit is refused with its numbers and a way out.
#include "tests/unit/parallel/experts/exchange/expert_case.h"

#include <gtest/gtest.h>

namespace muster::parallel::testing {

namespace {

// On two threads, with this much heap.
void expect_on_two(std::size_t heap, const std::function<void(Member&, Findings&)>& work) {
  expect_members_succeed(RanksAre::kThreads, 2, heap, [&](Member& member) {
    Findings findings;
    work(member, findings);
    return findings.text();
  });
}

template <typename T>
void expect_refused(
    Findings& findings, const Expected<T>& made, StatusCode code, const std::string& part) {
  findings.expect(
      made.status().code() == code && made.status().message().find(part) != std::string::npos,
      "wanted \"" + part + "\", got " + made.status().to_string());
}

EpExchangeOptions good_options() {
  return expert_case(2, Spread::kUniform, 1).options();
}

TEST(ExchangeCreation, RefusesWhatCanNeverWorkWithItsNumbers) {
  expect_on_two(std::size_t{1} << 20, [](Member& member, Findings& findings) {
    const auto refuses = [&](const EpExchangeOptions& options, const std::string& part) {
      expect_refused(
          findings,
          EpExchange::create(member.heap, nullptr, options, soon()),
          StatusCode::kInvalidArgument,
          part);
    };
    EpExchangeOptions options = good_options();
    options.shape.experts = 5;
    refuses(options, "5");
    options = good_options();
    options.shape.top_k = 5;
    refuses(options, "5");
    options = good_options();
    options.shape.top_k = 0;
    refuses(options, "0");
    options = good_options();
    options.shape.ranks = 4;
    options.shape.experts = 8;
    refuses(options, "shape.ranks must be the size of the heap's group, 2, got 4");
    options = good_options();
    options.hidden = 0;
    refuses(options, "hidden must be at least 1, got 0");
    options = good_options();
    options.type = DType::kFloat16;
    refuses(options, "float32 or bfloat16, got");
    options = good_options();
    options.numerics = EpNumerics::kWireExact;
    refuses(options, "float32 rows take plain");
    options = good_options();
    options.shape.tokens_max = std::int64_t{1} << 40;
    refuses(options, "");
  });
}

TEST(ExchangeCreation, SaysHowMuchHeapItTakesWhenThereIsLess) {
  EpExchangeOptions options = good_options();
  options.hidden = 64;
  expect_on_two(4096, [&](Member& member, Findings& findings) {
    expect_refused(
        findings,
        EpExchange::create(member.heap, nullptr, options, soon()),
        StatusCode::kResourceExhausted,
        "takes " + std::to_string(EpExchange::heap_bytes(options)) + " bytes of heap per rank");
  });
}

TEST(ExchangeCreation, FitsIntoWhatItSaysEvenBehindOtherAllocations) {
  const EpExchangeOptions options = good_options();
  expect_on_two(EpExchange::heap_bytes(options) + 1, [&](Member& member, Findings& findings) {
    findings.expect(member.heap.allocate(1, 1).ok(), "one byte");
    findings.expect(
        EpExchange::create(member.heap, nullptr, options, soon()).status(), "the exchange");
  });
}

TEST(ExchangeCreation, NamesTheRankWhoseOptionsDiffer) {
  expect_on_two(std::size_t{1} << 20, [](Member& member, Findings& findings) {
    EpExchangeOptions options = good_options();
    if (member.rank() == 1) {
      options.entry_barriers = false;  // as large as the others', so that only the options differ
    }
    expect_refused(
        findings,
        EpExchange::create(member.heap, nullptr, options, soon()),
        StatusCode::kInvalidArgument,
        "options of the expert exchange differ: those of rank 1");
  });
}

TEST(ExchangeCreation, RefusesAPoolOfAnotherShape) {
  const EpExchangeOptions options = good_options();
  expect_on_two(std::size_t{4} << 20, [&](Member& member, Findings& findings) {
    EpShape fewer = options.shape;
    fewer.slots = 1;
    auto pool = EpPool::create(member.heap, fewer, two_projections(), DType::kFloat32);
    findings.expect(pool.status(), "pool");
    expect_refused(
        findings,
        EpExchange::create(member.heap, pool->get(), options, soon()),
        StatusCode::kInvalidArgument,
        "another shape");
  });
}

TEST(Pool, RefusesMatricesThatDoNotFillPagesAndSaysWhichWould) {
  const EpShape shape = good_options().shape;
  expect_on_two(std::size_t{1} << 20, [&](Member& member, Findings& findings) {
    expect_refused(
        findings,
        EpPool::create(member.heap, shape, {{16, 64}, {5, 7}}, DType::kBFloat16),
        StatusCode::kInvalidArgument,
        "projection 1: 2 experts of 5 x 7 bfloat16 are 140 bytes, not a multiple of the heap's "
        "granularity 4096: make rows * cols a multiple of 1024");
    expect_refused(
        findings,
        EpPool::create(member.heap, shape, {}, DType::kBFloat16),
        StatusCode::kInvalidArgument,
        "projections must have at least one entry");
    expect_refused(
        findings,
        EpPool::create(member.heap, shape, {{0, 64}}, DType::kBFloat16),
        StatusCode::kInvalidArgument,
        "rows and cols must be at least 1, got 0 x 64");
  });
}

TEST(Pool, SaysHowMuchHeapItTakesWhenThereIsLess) {
  const EpShape shape = good_options().shape;
  const std::vector<EpProjection> projections = two_projections();
  const std::size_t bytes = EpPool::heap_bytes(shape, projections, DType::kFloat32);
  expect_on_two(8192, [&](Member& member, Findings& findings) {
    expect_refused(
        findings,
        EpPool::create(member.heap, shape, projections, DType::kFloat32),
        StatusCode::kResourceExhausted,
        "takes " + std::to_string(bytes) + " bytes of heap per rank");
  });
  expect_on_two(bytes, [&](Member& member, Findings& findings) {
    findings.expect(
        EpPool::create(member.heap, shape, projections, DType::kFloat32).status(), "fits");
  });
}

TEST(Pool, RefusesHomesThatAreNotOnPagesOrOutsideTheChunk) {
  const EpShape shape = good_options().shape;
  expect_on_two(std::size_t{1} << 20, [&](Member& member, Findings& findings) {
    auto pool = EpPool::create(member.heap, shape, {{16, 64}}, DType::kFloat32);
    findings.expect(pool.status(), "pool");
    const std::vector<std::size_t> good{std::size_t{512} << 10};
    for (const std::size_t bad : {std::size_t{100}, std::size_t{1} << 20}) {
      const std::vector<std::size_t> homes{bad};
      expect_refused(
          findings,
          (*pool)->map_layer("layer 9", homes, good),
          StatusCode::kInvalidArgument,
          "layer 9, projection 0: home offset " + std::to_string(bad));
      expect_refused(
          findings,
          (*pool)->map_layer("layer 9", good, homes),
          StatusCode::kInvalidArgument,
          "home offset " + std::to_string(bad));
    }
    expect_refused(
        findings,
        (*pool)->map_layer("layer 9", good, {}),
        StatusCode::kInvalidArgument,
        "layer 9: 1 weight and 0 gradient offsets for 1 projections");
  });
}

// 4 of 6 bytes of a bf16 slot's element were gradients that nobody used.
TEST(Pool, ForInferenceHasNoGradientsInTheHeapAndRefusesToReduceThem) {
  const MoveCase test = expert_case(2, Spread::kSkewed, 7);
  const DType type = DType::kBFloat16;
  const EpPoolUse use = EpPoolUse::kInference;
  const std::vector<EpProjection> projections = two_projections();
  const std::size_t slots = EpPool::heap_bytes(test.shape, projections, type, use);
  // Slots of 2 experts of 1024 and of 2048 elements, and a page for alignment.
  EXPECT_EQ(slots, 2 * 2 * (1024 + 2048) + 4096);
  EXPECT_EQ(EpPool::heap_bytes(test.shape, projections, type), 3 * (slots - 4096) + 4096);
  const std::size_t heap = heap_bytes(test) + slots + 5 * comm::kSymmetricGranularity;
  expect_on_two(heap, [&](Member& member, Findings& findings) {
    auto pool = EpPool::create(member.heap, test.shape, projections, type, use);
    findings.expect(pool.status(), "pool");
    findings.expect((*pool)->slot_gradients(0, 0) == nullptr, "slot gradients");
    std::vector<std::size_t> homes;
    for (const EpProjection& projection : projections) {
      const auto bytes = static_cast<std::size_t>(2 * 2 * projection.rows * projection.cols);
      homes.push_back(*member.heap.allocate(bytes, comm::kSymmetricGranularity));
    }
    expect_refused(
        findings,
        (*pool)->map_layer("layer 3", homes, homes),
        StatusCode::kInvalidArgument,
        "layer 3: 2 weight and 2 gradient offsets for 2 projections of a pool for inference");
    const auto layer = (*pool)->map_layer("layer 3", homes, {});
    findings.expect(layer.status(), "layer");
    findings.expect(layer->projections[0].gradients.empty(), "gradients");
    auto exchange = EpExchange::create(member.heap, pool->get(), test.options(), soon());
    findings.expect(exchange.status(), "exchange");
    EpPlan plan(test.shape, test.balance);
    findings.expect((*exchange)->make_plan(choices_of(test, member.rank()), plan, soon()), "plan");
    findings.expect((*exchange)->prefetch(plan, *layer, soon()), "prefetch");
    const Status refused = (*exchange)->reduce_gradients(plan, *layer, soon());
    findings.expect(
        refused.code() == StatusCode::kFailedPrecondition &&
            refused.message().find("EpPoolUse::kTraining") != std::string::npos,
        refused.to_string());
  });
}

TEST(Pool, BuffersOfAllRanksLieOneStrideApart) {
  const MoveCase test = expert_case(3, Spread::kUniform, 2);
  expect_members_succeed(
      RanksAre::kThreads, 3, expert_heap_bytes(test, DType::kBFloat16, 0), [&](Member& member) {
        Findings findings;
        auto pool = EpPool::create(member.heap, test.shape, two_projections(), DType::kBFloat16);
        findings.expect(pool.status(), "pool");
        for (std::size_t p = 0; p < 2; ++p) {
          for (int peer = 0; peer < 3; ++peer) {
            const auto away = static_cast<std::ptrdiff_t>(member.heap.stride()) * peer;
            findings.expect(
                (*pool)->slots(peer, p) - (*pool)->slots(0, p) == away,
                "slots " + std::to_string(p));
            findings.expect(
                ((*pool)->slot_gradients(peer, p) - (*pool)->slot_gradients(0, p)) * 4 == away,
                "gradients " + std::to_string(p));
          }
        }
        return findings.text();
      });
}

}  // namespace

}  // namespace muster::parallel::testing
