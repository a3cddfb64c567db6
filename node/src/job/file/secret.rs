//! Secrets of a job: where their values come from, and the values, which are never printed.

use std::fmt;

use zeroize::Zeroizing;

use super::super::spec::is_variable;
use super::error::Wrong;

/// The largest value: a private key fits, and several of them into one job.
pub const MAX_SECRET_BYTES: usize = 4 << 10;

/// Where `mesh submit` finds the value of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretFrom {
    /// In its own environment: `env:NAME`.
    Env(String),
    /// In a file: `file:PATH`, beside the job.toml where it is relative.
    File(String),
}

/// The value of a secret. Its `Debug` shows nothing of it, and its memory is wiped.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Zeroizing<Vec<u8>>);

impl SecretValue {
    /// Takes what was found.
    pub fn new(value: impl Into<Vec<u8>>) -> Self {
        Self(Zeroizing::new(value.into()))
    }

    /// What it is.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Why it cannot be a variable's value, without saying what it is.
    pub(super) fn flaw(&self) -> Option<&'static str> {
        let flaws = [
            (self.0.is_empty(), "it is empty"),
            (self.0.len() > MAX_SECRET_BYTES, "it is longer than 4 KiB"),
            (self.0.contains(&0), "it has a NUL in it"),
        ];
        flaws.into_iter().find_map(|(is_so, text)| is_so.then_some(text))
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(…)")
    }
}

/// A secret as a file has it.
#[derive(Debug, Clone)]
pub(super) enum Secret {
    From(SecretFrom),
    Literal(SecretValue),
}

impl Secret {
    /// Reads an entry of `[secrets]`. What it says is wrong quotes nothing.
    pub(super) fn read(text: &str) -> Result<Self, Wrong> {
        if let Some(name) = text.strip_prefix("env:") {
            if is_variable(name) {
                return Ok(Self::From(SecretFrom::Env(name.to_owned())));
            }
            let message = "`env:` is followed by the name of a variable";
            return Err(Wrong::new(message, "as in `env:WANDB_API_KEY`"));
        }
        if let Some(path) = text.strip_prefix("file:") {
            if !path.trim().is_empty() && !path.contains('\0') {
                return Ok(Self::From(SecretFrom::File(path.to_owned())));
            }
            return Err(Wrong::new("`file:` is followed by a path", "as in `file:token.txt`"));
        }
        let value = SecretValue::new(text);
        match value.flaw() {
            Some(flaw) => {
                let message = format!("this cannot be a secret: {flaw}");
                Err(Wrong::new(message, "as in `env:WANDB_API_KEY` or `file:token.txt`"))
            }
            None => Ok(Self::Literal(value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_comes_from_the_environment_a_file_or_the_file_itself() {
        let from = |text| match Secret::read(text).unwrap() {
            Secret::From(from) => Some(from),
            Secret::Literal(_) => None,
        };
        assert_eq!(from("env:TOKEN"), Some(SecretFrom::Env("TOKEN".into())));
        assert_eq!(from("file:a b.txt"), Some(SecretFrom::File("a b.txt".into())));
        assert_eq!(from("hunter2"), None);
        let long = "x".repeat(MAX_SECRET_BYTES + 1);
        for wrong in ["", "env:", "env:A-B", "file:", "file: ", "a\0b", &long] {
            let Wrong { message, fix } = Secret::read(wrong).unwrap_err();
            assert!(
                !["A-B", "a\0b", &long].iter().any(|value| message.contains(value)),
                "{message}"
            );
            assert!(fix.starts_with("as in"), "{fix}");
        }
    }

    #[test]
    fn nothing_of_a_value_is_printed() {
        let shown = format!("{:?}", Secret::read("hunter2").unwrap());
        assert_eq!(shown, "Literal(SecretValue(…))");
    }
}
