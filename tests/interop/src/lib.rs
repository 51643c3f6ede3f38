//! Programs over the published `burn-remote` 0.21.0: the reference that other clients and servers are tested against.

pub mod arguments;
pub mod attempt;
pub mod bench;
pub mod data;
pub mod device;
pub mod errors;
pub mod moves;
pub mod ops;
pub mod output;
pub mod pair;
pub mod threads;
pub mod train;
pub mod uploads;
pub mod watchdog;
