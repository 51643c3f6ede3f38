//! What came of something that may fail, panic or never return?

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::watchdog;

/// How an attempt ended.
pub enum Outcome {
    Value(Value),
    Panic(String),
    /// Nothing within the limit; the thread that waits is left behind.
    Hang,
}

impl Outcome {
    /// The outcome as `{"outcome": …}` with the value or the message.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Value(value) => json!({"outcome": "value", "value": value}),
            Self::Panic(message) => json!({"outcome": "panic", "message": message}),
            Self::Hang => json!({"outcome": "hang"}),
        }
    }
}

/// Run `work` in a thread of its own and wait at most `limit`.
///
/// Burn derives the stream from the thread, so each attempt is a stream of its own on the wire.
pub fn attempt(
    name: &str,
    limit: Duration,
    work: impl FnOnce() -> Value + Send + 'static,
) -> Outcome {
    watchdog::step(name);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // The receiver is gone when the limit has passed: then nobody asks for the outcome.
        let _ = sender.send(catch(work));
    });
    match receiver.recv_timeout(limit) {
        Ok(Ok(value)) => Outcome::Value(value),
        Ok(Err(message)) => Outcome::Panic(message),
        Err(_) => Outcome::Hang,
    }
}

/// Run `work` here; a panic becomes its message.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        payload
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| payload.downcast_ref::<&str>().map(|text| text.to_string()))
            .unwrap_or_else(|| "a panic without a text".to_string())
    })
}
