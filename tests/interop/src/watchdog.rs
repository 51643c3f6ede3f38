//! What ends a process whose peer never answers? The 0.21 client waits forever when its socket breaks.

use std::sync::Mutex;
use std::time::Duration;

/// The exit code of a process that the watchdog ended.
pub const EXIT_CODE: i32 = 3;

static STEP: Mutex<String> = Mutex::new(String::new());

/// End the process with [`EXIT_CODE`] after `limit`, naming the step it was in.
pub fn start(limit: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        eprintln!(
            "timed out after {} s in: {}",
            limit.as_secs_f64(),
            current_step()
        );
        std::process::exit(EXIT_CODE);
    });
}

/// Record what the process does next, for the message of a timeout.
pub fn step(name: impl Into<String>) {
    *STEP.lock().expect("no step panics while it is set") = name.into();
}

fn current_step() -> String {
    STEP.lock().expect("no step panics while it is set").clone()
}
