// SPDX-License-Identifier: Apache-2.0
// Grouped products: every group is cut into blocks of rows, and those into columns where there are
// more threads than blocks. Blocks are independent of each other.
#include "kernels/cpu/thread_team.h"
#include "kernels/grouped_gemm/cpu/block.h"

#include <muster/common/check.h>
#include <muster/kernels/grouped_gemm.h>

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <vector>

namespace muster::kernels {

namespace {

// Rows and columns of the product of one group.
struct BlockTask {
  std::int64_t group;
  std::int64_t row;
  std::int64_t rows;
  std::int64_t column;
  std::int64_t columns;
};

// Memory and threads that a calling thread keeps between calls.
class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  Workspace(Workspace&&) = delete;
  Workspace& operator=(Workspace&&) = delete;

  ~Workspace() { leave_to_parent(); }

  ThreadTeam& team(int members) {
    leave_to_parent();
    if (team_ == nullptr || team_->members() != members) {
      team_ = std::make_unique<ThreadTeam>(members);
      process_ = getpid();
      scratch_.resize(std::max(scratch_.size(), static_cast<std::size_t>(members)));
    }
    return *team_;
  }

  BlockScratch& scratch(int member) { return scratch_[static_cast<std::size_t>(member)]; }

  // Cleared and filled by each call.
  std::vector<BlockTask>& tasks() { return tasks_; }

 private:
  // The threads of a team stay in the process that made it: a forked child cannot join them.
  void leave_to_parent() {
    if (team_ != nullptr && process_ != getpid()) {
      static_cast<void>(team_.release());
    }
  }

  std::unique_ptr<ThreadTeam> team_;
  pid_t process_{0};
  std::vector<BlockScratch> scratch_;
  std::vector<BlockTask> tasks_;
};

Workspace& workspace() {
  thread_local Workspace kept;
  return kept;
}

std::int64_t at(std::span<const std::int64_t> values, std::int64_t index) {
  return values[static_cast<std::size_t>(index)];
}

void check(const GroupedProblem& problem) {
  const RowGroups& groups = problem.groups;
  MUSTER_CHECK(
      groups.begins.size() == groups.group_rows.size() &&
          groups.begins.size() == groups.ends.size(),
      "row groups need as many begins and ends as row counts");
  MUSTER_CHECK(
      problem.in > 0 && problem.out > 0 && problem.threads > 0,
      "a grouped product needs sizes and threads above 0");
  MUSTER_CHECK(
      problem.type == DType::kFloat32 || problem.type == DType::kBFloat16,
      "grouped products are of fp32 or bf16");
  std::int64_t end = 0;
  for (std::size_t g = 0; g < groups.begins.size(); ++g) {
    if (groups.group_rows[g] == 0 && groups.ends[g] == groups.begins[g]) {
      continue;  // may lie anywhere
    }
    MUSTER_CHECK(
        groups.begins[g] >= end && groups.group_rows[g] >= 0 &&
            groups.ends[g] >= groups.begins[g] + groups.group_rows[g],
        "row groups must be ascending and end behind their rows");
    end = groups.ends[g];
  }
}

// Products of a problem, one a group. Rows and depth are 0 where they are the rows of the group.
struct Shape {
  std::int64_t rows{0};
  std::int64_t columns{0};
  std::int64_t depth{0};
};

// Sizes of the product of one group; zero rows skip it.
Shape shape_of(const GroupedProblem& problem, const Shape& shape, std::int64_t group) {
  const std::int64_t rows = at(problem.groups.group_rows, group);
  return {
      .rows = shape.rows == 0 || rows == 0 ? rows : shape.rows,
      .columns = shape.columns,
      .depth = shape.depth == 0 ? rows : shape.depth};
}

// Number of column parts per block, so that every thread has work.
std::int64_t column_parts(
    const GroupedProblem& problem, const Shape& shape, const GemmTable& table) {
  constexpr std::int64_t kBlocksPerThread = 4;
  constexpr std::int64_t kLeastPanels = 4;  // below so few columns packing the left side shows
  std::int64_t total = 0;
  std::int64_t largest = 0;
  for (std::int64_t g = 0; g < std::ssize(problem.groups.begins); ++g) {
    const Shape product = shape_of(problem, shape, g);
    total += product.rows * product.depth;
    largest = std::max(largest, std::min(product.rows, block_rows(table)) * product.depth);
  }
  const std::int64_t most = shape.columns / (kLeastPanels * table.right_lines);
  if (problem.threads == 1 || total == 0 || most <= 1) {
    return 1;
  }
  const std::int64_t wanted = (largest * kBlocksPerThread * problem.threads + total - 1) / total;
  return std::clamp<std::int64_t>(wanted, 1, most);
}

// Share of `count` in whole panels, so that few are cut.
std::int64_t even_share(std::int64_t count, std::int64_t parts, std::int64_t panel) {
  const std::int64_t share = (count + parts - 1) / parts;
  return (share + panel - 1) / panel * panel;
}

// Blocks if every group had rows, so that a call with other groups needs no more memory.
std::int64_t most_blocks(
    const GroupedProblem& problem, const Shape& shape, const GemmTable& table) {
  const std::int64_t groups = std::ssize(problem.groups.begins);
  const std::int64_t most = block_rows(table);
  if (shape.rows != 0) {
    return groups * ((shape.rows + most - 1) / most);
  }
  return groups +
         std::accumulate(
             problem.groups.group_rows.begin(), problem.groups.group_rows.end(), std::int64_t{0}) /
             most;
}

// Blocks of all groups, the most work first.
void make_tasks(
    const GroupedProblem& problem,
    const Shape& shape,
    const GemmTable& table,
    std::vector<BlockTask>& tasks) {
  const std::int64_t parts = column_parts(problem, shape, table);
  const std::int64_t width = even_share(shape.columns, parts, table.right_lines);
  tasks.clear();
  tasks.reserve(static_cast<std::size_t>(most_blocks(problem, shape, table) * parts));
  for (std::int64_t g = 0; g < std::ssize(problem.groups.begins); ++g) {
    const std::int64_t rows = shape_of(problem, shape, g).rows;
    const std::int64_t blocks = (rows + block_rows(table) - 1) / block_rows(table);
    const std::int64_t height = blocks == 0 ? 1 : even_share(rows, blocks, table.left_lines);
    for (std::int64_t row = 0; row < rows; row += height) {
      for (std::int64_t column = 0; column < shape.columns; column += width) {
        tasks.push_back(
            {g,
             row,
             std::min(height, rows - row),
             column,
             std::min(width, shape.columns - column)});
      }
    }
  }
  const auto work = [&](const BlockTask& task) {
    return task.rows * task.columns * shape_of(problem, shape, task.group).depth;
  };
  std::sort(tasks.begin(), tasks.end(), [&](const BlockTask& a, const BlockTask& b) {
    return work(a) > work(b);
  });
}

const void* moved(const GroupedProblem& problem, const void* data, std::int64_t elements) {
  return static_cast<const std::byte*>(data) + size_bytes(problem.type, elements);
}

void* moved(const GroupedProblem& problem, void* data, std::int64_t elements) {
  return static_cast<std::byte*>(data) + size_bytes(problem.type, elements);
}

// product_of(task) for all blocks of the problem.
template <typename ProductOf>
void run_blocks(const GroupedProblem& problem, const Shape& shape, const ProductOf& product_of) {
  const GemmTable& table = gemm_table();
  Workspace& work = workspace();
  make_tasks(problem, shape, table, work.tasks());
  ThreadTeam& team = work.team(problem.threads);
  const auto run = [&](std::int64_t number, int member) {
    const BlockTask& task = work.tasks()[static_cast<std::size_t>(number)];
    work.scratch(member).multiply(table, product_of(task));
  };
  team.run(static_cast<std::int64_t>(work.tasks().size()), std::ref(run));
}

// Padding rows of an output of `columns`.
void clear_padding(const GroupedProblem& problem, std::int64_t columns, void* output) {
  const RowGroups& groups = problem.groups;
  for (std::size_t g = 0; g < groups.begins.size(); ++g) {
    const std::int64_t begin = groups.begins[g] + groups.group_rows[g];
    const std::int64_t bytes = size_bytes(problem.type, (groups.ends[g] - begin) * columns);
    if (bytes > 0) {
      std::fill_n(
          static_cast<std::byte*>(moved(problem, output, begin * columns)), bytes, std::byte{0});
    }
  }
}

// `rows` [rows, depth] times the matrices to `result` [rows, columns].
struct RowProduct {
  const void* rows{nullptr};
  const void* weights{nullptr};
  void* result{nullptr};
  std::int64_t depth{0};
  std::int64_t columns{0};
  bool transposed{false};  // the matrices as stored are [columns, depth]
  bool accumulate{false};
};

void multiply_rows(const GroupedProblem& problem, const RowProduct& rows) {
  const bool halves = problem.type == DType::kBFloat16;
  const std::int64_t weight_stride = rows.transposed ? rows.depth : rows.columns;
  const auto product_of = [&](const BlockTask& task) {
    const std::int64_t row = at(problem.groups.begins, task.group) + task.row;
    const std::int64_t weight =
        task.group * problem.in * problem.out + task.column * (rows.transposed ? weight_stride : 1);
    return BlockProduct{
        .m = task.rows,
        .n = task.columns,
        .k = rows.depth,
        .a = {moved(problem, rows.rows, row * rows.depth), rows.depth, false},
        .b = {moved(problem, rows.weights, weight), weight_stride, rows.transposed},
        .halves = halves,
        .narrow_out = halves,
        .accumulate = rows.accumulate,
        .c = moved(problem, rows.result, row * rows.columns + task.column),
        .stride = rows.columns};
  };
  run_blocks(problem, {.rows = 0, .columns = rows.columns, .depth = rows.depth}, product_of);
  clear_padding(problem, rows.columns, rows.result);
}

}  // namespace

void grouped_forward(const GroupedProblem& problem, const void* x, const void* weights, void* y) {
  check(problem);
  multiply_rows(
      problem,
      {.rows = x,
       .weights = weights,
       .result = y,
       .depth = problem.in,
       .columns = problem.out,
       .transposed = true,
       .accumulate = false});
}

void grouped_dgrad(
    const GroupedProblem& problem, const void* dy, const void* weights, void* dx, bool accumulate) {
  check(problem);
  MUSTER_CHECK(
      !accumulate || problem.type == DType::kFloat32, "input gradients are added up in fp32 only");
  multiply_rows(
      problem,
      {.rows = dy,
       .weights = weights,
       .result = dx,
       .depth = problem.out,
       .columns = problem.in,
       .transposed = false,
       .accumulate = accumulate});
}

void grouped_wgrad(const GroupedProblem& problem, const void* x, const void* dy, float* gradients) {
  check(problem);
  const auto product_of = [&](const BlockTask& task) {
    const std::int64_t begin = at(problem.groups.begins, task.group);
    return BlockProduct{
        .m = task.rows,
        .n = task.columns,
        .k = at(problem.groups.group_rows, task.group),
        .a = {moved(problem, dy, begin * problem.out + task.row), problem.out, true},
        .b = {moved(problem, x, begin * problem.in + task.column), problem.in, false},
        .halves = problem.type == DType::kBFloat16,
        .narrow_out = false,
        .accumulate = true,
        .c = gradients + (task.group * problem.out + task.row) * problem.in + task.column,
        .stride = problem.in};
  };
  run_blocks(problem, {.rows = problem.out, .columns = problem.in, .depth = 0}, product_of);
}

}  // namespace muster::kernels
