//! `burn22-client COMMAND ADDRESS… [--timeout 60]`: runs one program on the real client, prints one line of JSON.

use std::time::Duration;

use burn_interop_22::arguments::{Arguments, refuse};
use burn_interop_22::{bench, cases, moves, ops, reduce, train, watchdog};
use serde_json::Value;

/// What a command runs.
type Program = fn(&Arguments) -> Value;

/// Each command by its name; positional words are counted after it.
const COMMANDS: [(&str, Program); 8] = [
    ("train", train::run),
    ("ops", ops::run),
    ("move", moves::run),
    ("local-moves", moves::local),
    ("all-reduce", reduce::run),
    ("errors", cases::errors),
    ("threads", cases::threads),
    ("bench", bench::run),
];

fn main() {
    let mut words = std::env::args().skip(1);
    let names = COMMANDS.map(|(name, _)| name).join(" | ");
    let command = words
        .next()
        .unwrap_or_else(|| refuse(&format!("usage: burn22-client {names} ADDRESS…")));
    let (_, program) = COMMANDS
        .into_iter()
        .find(|(name, _)| *name == command)
        .unwrap_or_else(|| refuse(&format!("unknown command '{command}', known: {names}")));
    let arguments = Arguments::parse(words);
    watchdog::start(Duration::from_secs_f64(arguments.option("--timeout", 60.0)));
    println!("{}", program(&arguments));
    // Threads of attempts that hang are left behind.
    std::process::exit(0);
}
