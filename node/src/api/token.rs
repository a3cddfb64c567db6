//! The tokens that open the HTTP API on TCP.
//!
//! | file | opens |
//! |---|---|
//! | `token` | everything: the owner's |
//! | `token.auditor` | what only reads (GET) |
//!
//! They are made on first use and lie in the node's directory, for its owner alone. The process keeps digests
//! of them, and compares digests, so that neither the time nor a dump of the memory tells them.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::dir::Dir;

/// The shortest token that is taken from a file: 128 bits in hex.
const MIN_TOKEN: usize = 32;
/// The longest.
const MAX_TOKEN: usize = 256;

/// The file of the token that opens everything.
pub(super) const OWNER: &str = "token";
/// The file of the token that opens what only reads.
const AUDITOR: &str = "token.auditor";

/// What a bearer may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Everything.
    Owner,
    /// Read.
    Auditor,
}

/// Every token of a node.
#[derive(Clone)]
pub(super) struct Tokens {
    owner: Token,
    auditor: Token,
}

impl Tokens {
    /// Reads the tokens of a directory, and makes those that are not there.
    pub(super) fn open(dir: &Dir) -> io::Result<Self> {
        let owner = Token::open(&dir.file(OWNER))?;
        Ok(Self { owner, auditor: Token::open(&dir.file(AUDITOR))? })
    }

    /// What whoever shows `claimed` may do.
    pub(super) fn role(&self, claimed: &str) -> Option<Role> {
        // Both are compared, whichever it is.
        match (self.owner.is(claimed), self.auditor.is(claimed)) {
            (true, _) => Some(Role::Owner),
            (false, true) => Some(Role::Auditor),
            (false, false) => None,
        }
    }
}

/// What a bearer must know.
#[derive(Clone)]
struct Token {
    digest: [u8; 32],
}

impl Token {
    /// Reads the token in `path`, or makes one there.
    fn open(path: &Path) -> io::Result<Self> {
        match OpenOptions::new()
            .read(true)
            .custom_flags(nix::fcntl::OFlag::O_NOFOLLOW.bits())
            .open(path)
        {
            Ok(file) => Self::read(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::make(path),
            Err(error) => Err(error),
        }
    }

    fn read(file: File) -> io::Result<Self> {
        let wrong = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why.to_owned()));
        if file.metadata()?.permissions().mode() & 0o077 != 0 {
            return wrong(
                "the token's file can be read by others: remove it, and a new one is made",
            );
        }
        let mut text = Zeroizing::new(String::new());
        file.take(MAX_TOKEN as u64 + 2).read_to_string(&mut text)?;
        let token = text.trim();
        let fits = (MIN_TOKEN..=MAX_TOKEN).contains(&token.len());
        if !fits || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return wrong("the token's file holds no token: remove it, and a new one is made");
        }
        Ok(Self::of(token))
    }

    fn make(path: &Path) -> io::Result<Self> {
        let bytes = Zeroizing::new(crate::random::<32>());
        let token = Zeroizing::new(data_encoding::HEXLOWER.encode(&*bytes));
        // Written beside and renamed: a crash leaves no half of a token.
        let beside = path.with_extension("new");
        let _ = std::fs::remove_file(&beside);
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&beside)?;
        file.write_all(format!("{}\n", *token).as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        Ok(Self::of(&token))
    }

    fn of(token: &str) -> Self {
        Self { digest: *blake3::hash(token.as_bytes()).as_bytes() }
    }

    /// Whether `claimed` is the token. Takes the same time wherever it differs.
    fn is(&self, claimed: &str) -> bool {
        let claimed = blake3::hash(claimed.as_bytes());
        self.digest.ct_eq(claimed.as_bytes()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_once_and_is_the_owners_alone() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("token");
        let made = Token::open(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(text.trim().len(), 64);
        assert!(made.is(text.trim()) && Token::open(&path).unwrap().is(text.trim()));
        assert!(!made.is("") && !made.is(&text.trim()[..63]) && !made.is(&"0".repeat(64)));
    }

    #[test]
    fn a_file_that_others_can_read_or_that_holds_too_little_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("token");
        std::fs::write(&path, "a".repeat(64)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(Token::open(&path).is_err());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Token::open(&path).is_ok());
        for bad in ["", "short", &"a".repeat(300), &"é".repeat(40)] {
            std::fs::write(&path, bad).unwrap();
            assert!(Token::open(&path).is_err(), "{bad}");
        }
    }
}
