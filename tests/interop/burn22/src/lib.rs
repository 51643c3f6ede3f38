//! Programs over the published `burn-remote` 0.22.1: the reference that other clients and servers are tested against.
//!
//! Arguments, attempts and the watchdog are those of the programs for 0.21.

#[path = "../../src/arguments.rs"]
pub mod arguments;
#[path = "../../src/attempt.rs"]
pub mod attempt;
pub mod bench;
pub mod cases;
pub mod data;
pub mod moves;
pub mod ops;
pub mod reduce;
pub mod train;
#[path = "../../src/watchdog.rs"]
pub mod watchdog;
