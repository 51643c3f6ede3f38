//! Which command was given, with which positional values and which `--name value` options?

use std::collections::BTreeMap;
use std::str::FromStr;

/// Options that take no value.
const SWITCHES: [&str; 4] = ["--full", "--iroh", "--read-each-step", "--share"];

/// A parsed command line; reading a value that is missing or malformed ends the process with code 2.
pub struct Arguments {
    positional: Vec<String>,
    options: BTreeMap<String, String>,
}

impl Arguments {
    /// Parse the words after the program's name.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Self {
        let mut positional = Vec::new();
        let mut options = BTreeMap::new();
        while let Some(word) = words.next() {
            if SWITCHES.contains(&word.as_str()) {
                options.insert(word, "true".to_string());
            } else if word.starts_with("--") {
                let value = words
                    .next()
                    .unwrap_or_else(|| refuse(&format!("{word} needs a value")));
                options.insert(word, value);
            } else {
                positional.push(word);
            }
        }
        Self {
            positional,
            options,
        }
    }

    /// The positional word at `index`.
    pub fn word(&self, index: usize, meaning: &str) -> &str {
        match self.positional.get(index) {
            Some(word) => word,
            None => refuse(&format!("missing {meaning}")),
        }
    }

    /// The positional word at `index`, where there is one.
    pub fn optional_word(&self, index: usize) -> Option<&str> {
        self.positional.get(index).map(String::as_str)
    }

    /// The positional number at `index`, or `default` where the line is shorter.
    pub fn number(&self, index: usize, meaning: &str, default: usize) -> usize {
        match self.positional.get(index) {
            Some(word) => parse(word, meaning),
            None => default,
        }
    }

    /// The value of an option, or `default` where it was not given.
    pub fn option<T: FromStr>(&self, name: &str, default: T) -> T {
        match self.options.get(name) {
            Some(value) => parse(value, name),
            None => default,
        }
    }

    /// Whether a switch was given.
    pub fn switch(&self, name: &str) -> bool {
        debug_assert!(SWITCHES.contains(&name));
        self.options.contains_key(name)
    }
}

fn parse<T: FromStr>(text: &str, meaning: &str) -> T {
    text.parse()
        .unwrap_or_else(|_| refuse(&format!("{meaning}: cannot read '{text}'")))
}

/// Say what is wrong with the command line and end the process with code 2.
pub fn refuse(reason: &str) -> ! {
    eprintln!("{reason}");
    std::process::exit(2);
}
