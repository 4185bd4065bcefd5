// Grouped products: every group is cut into blocks of rows, and those into columns where there are
// more threads than blocks. Blocks know nothing of each other.
#include "cpu/thread_team.h"
#include "ep/grouped_gemm_block.h"

#include <muster/common/check.h>
#include <muster/kernels/ep/grouped_gemm.h>

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
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

// What a thread that calls keeps between calls.
class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

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

  std::vector<BlockTask> tasks;

 private:
  // The threads of a team stay in the process that made it: after a fork nobody can join them.
  void leave_to_parent() {
    if (team_ != nullptr && process_ != getpid()) {
      static_cast<void>(team_.release());
    }
  }

  std::unique_ptr<ThreadTeam> team_;
  pid_t process_{0};
  std::vector<BlockScratch> scratch_;
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
      problem.type == FloatType::kFloat32 || problem.type == FloatType::kBFloat16,
      "grouped products are of fp32 or bf16");
}

// What the three products have in common: rows are those of the result, not of x.
struct Shape {
  std::int64_t columns{0};
  std::int64_t depth{0};        // of a row of x; 0: the rows of the group
  std::int64_t result_rows{0};  // 0: the rows of the group
};

void add_tasks(
    std::int64_t group,
    std::int64_t rows,
    std::int64_t columns,
    std::int64_t parts,
    const GemmTable& table,
    std::vector<BlockTask>& tasks) {
  const std::int64_t most = block_rows(table);
  const std::int64_t blocks = (rows + most - 1) / most;
  const std::int64_t lines = table.left_lines;
  const std::int64_t step = ((rows + blocks - 1) / blocks + lines - 1) / lines * lines;
  const std::int64_t width = ((columns + parts - 1) / parts + table.right_lines - 1) /
                             table.right_lines * table.right_lines;
  for (std::int64_t row = 0; row < rows; row += step) {
    for (std::int64_t column = 0; column < columns; column += width) {
      tasks.push_back(
          {group, row, std::min(step, rows - row), column, std::min(width, columns - column)});
    }
  }
}

// Blocks of all groups, the most work first, in as many columns as keep all threads busy.
void make_tasks(
    const GroupedProblem& problem,
    const Shape& shape,
    const GemmTable& table,
    std::vector<BlockTask>& tasks) {
  const RowGroups& groups = problem.groups;
  const auto count = static_cast<std::int64_t>(groups.group_rows.size());
  std::int64_t total = 0;
  std::int64_t largest = 0;
  for (std::int64_t g = 0; g < count; ++g) {
    const std::int64_t rows = at(groups.group_rows, g);
    const std::int64_t result_rows = shape.result_rows == 0 ? rows : shape.result_rows;
    const std::int64_t block = std::min(result_rows, block_rows(table));
    total += rows == 0 ? 0 : shape.result_rows == 0 ? rows : rows * shape.result_rows;
    largest = std::max(largest, shape.result_rows == 0 ? block : rows * block);
  }
  constexpr std::int64_t kTasksPerThread = 4;
  constexpr std::int64_t kLeastPanels = 4;  // columns below which packing the left side shows
  const std::int64_t wanted =
      problem.threads == 1 || total == 0
          ? 1
          : (largest * kTasksPerThread * problem.threads + total - 1) / total;
  const std::int64_t parts = std::clamp<std::int64_t>(
      wanted, 1, std::max<std::int64_t>(1, shape.columns / (kLeastPanels * table.right_lines)));
  tasks.clear();
  for (std::int64_t g = 0; g < count; ++g) {
    const std::int64_t rows = at(groups.group_rows, g);
    if (rows > 0) {
      add_tasks(
          g, shape.result_rows == 0 ? rows : shape.result_rows, shape.columns, parts, table, tasks);
    }
  }
  const auto work = [&](const BlockTask& task) {
    return task.rows * task.columns *
           (shape.depth == 0 ? at(groups.group_rows, task.group) : shape.depth);
  };
  std::sort(tasks.begin(), tasks.end(), [&](const BlockTask& a, const BlockTask& b) {
    return work(a) > work(b);
  });
}

const void* moved(const GroupedProblem& problem, const void* data, std::int64_t elements) {
  return static_cast<const std::byte*>(data) + elements * size_bytes(problem.type);
}

void* moved(const GroupedProblem& problem, void* data, std::int64_t elements) {
  return static_cast<std::byte*>(data) + elements * size_bytes(problem.type);
}

// product_of(task) for all blocks of the problem.
template <typename ProductOf>
void run_blocks(const GroupedProblem& problem, const Shape& shape, const ProductOf& product_of) {
  const GemmTable& table = gemm_table();
  Workspace& work = workspace();
  make_tasks(problem, shape, table, work.tasks);
  ThreadTeam& team = work.team(problem.threads);
  const auto run = [&](std::int64_t number, int member) {
    const BlockTask& task = work.tasks[static_cast<std::size_t>(number)];
    work.scratch(member).multiply(table, product_of(task));
  };
  team.run(static_cast<std::int64_t>(work.tasks.size()), std::ref(run));
}

// Padding rows of an output of `columns`.
void clear_padding(const GroupedProblem& problem, std::int64_t columns, void* output) {
  const RowGroups& groups = problem.groups;
  for (std::size_t g = 0; g < groups.begins.size(); ++g) {
    const std::int64_t begin = groups.begins[g] + groups.group_rows[g];
    const std::int64_t bytes = (groups.ends[g] - begin) * columns * size_bytes(problem.type);
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
  const bool halves = problem.type == FloatType::kBFloat16;
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
  run_blocks(problem, {.columns = rows.columns, .depth = rows.depth, .result_rows = 0}, product_of);
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
      !accumulate || problem.type == FloatType::kFloat32,
      "input gradients are added up in fp32 only");
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
        .halves = problem.type == FloatType::kBFloat16,
        .narrow_out = false,
        .accumulate = true,
        .c = gradients + (task.group * problem.out + task.row) * problem.in + task.column,
        .stride = problem.in};
  };
  run_blocks(problem, {.columns = problem.in, .depth = 0, .result_rows = problem.out}, product_of);
}

}  // namespace muster::kernels
