// SPDX-License-Identifier: Apache-2.0
// Gives the precompiled header of the modules a target to belong to.
