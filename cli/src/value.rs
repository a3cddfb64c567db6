//! What is typed as a value: durations, sizes, names, addresses, labels.
//!
//! Each parser takes one word and says in its error what it would have taken. The rules are those of
//! the conventions; whether a name is free or a node exists is for the node to say.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

/// The longest name.
const NAME_MAX: usize = 63;
/// The longest way to name a node: a whole id, in hexadecimal.
const REFERENCE_MAX: usize = 64;
/// The longest value of a label.
const LABEL_MAX: usize = 128;

/// Why a word is not what was wanted. `want` completes "it takes …".
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ValueError(String);

impl std::fmt::Display for ValueError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ValueError {}

fn wanted<T>(want: impl Into<String>) -> Result<T, ValueError> {
    Err(ValueError(want.into()))
}

/// `250ms 30s 5m 6h 7d`: a whole number and one unit.
pub(crate) fn duration(word: &str) -> Result<Duration, ValueError> {
    let rule = "a duration is a whole number and a unit: 250ms, 30s, 5m, 6h, 7d";
    let (number, unit) = split(word);
    let ms_each: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 3600 * 1000,
        "d" => 24 * 3600 * 1000,
        _ => return wanted(rule),
    };
    let Ok(number) = number.parse::<u64>() else { return wanted(rule) };
    match number.checked_mul(ms_each) {
        Some(ms) => Ok(Duration::from_millis(ms)),
        None => wanted("this is longer than any clock counts"),
    }
}

/// `512MiB 10GiB` (powers of 1024) or `500MB 10GB` (powers of 1000), in bytes.
pub(crate) fn size(word: &str) -> Result<u64, ValueError> {
    let rule =
        "a size is a whole number and a unit: 512MiB, 10GiB (binary) or 500MB, 10GB (decimal)";
    let (number, unit) = split(word);
    let each: u64 = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        "KB" | "kB" => 1000,
        "MB" => 1000 * 1000,
        "GB" => 1000 * 1000 * 1000,
        "TB" => 1000 * 1000 * 1000 * 1000,
        _ => return wanted(rule),
    };
    let Ok(number) = number.parse::<u64>() else { return wanted(rule) };
    match number.checked_mul(each) {
        Some(bytes) => Ok(bytes),
        None => wanted("this is more than any disk holds"),
    }
}

/// Parts a word where its digits end.
fn split(word: &str) -> (&str, &str) {
    word.split_at(word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len()))
}

/// `[a-z0-9][a-z0-9._-]{0,62}`: the name of a node, a party, a dataset.
pub(crate) fn name(word: &str) -> Result<String, ValueError> {
    let mut letters = word.chars();
    let first = letters.next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    if first && letters.all(in_name) && word.len() <= NAME_MAX {
        return Ok(word.to_owned());
    }
    wanted("a name has up to 63 of a-z 0-9 . _ - and begins with a letter or a digit")
}

fn in_name(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-')
}

/// A name, an id, or the beginning of an id. Safe as a part of a path.
pub(crate) fn reference(word: &str) -> Result<String, ValueError> {
    let lower = word.to_ascii_lowercase();
    let first = lower.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if first && lower.chars().all(in_name) && lower.len() <= REFERENCE_MAX {
        return Ok(lower);
    }
    wanted("it takes a name, an id, or the beginning of an id (see mesh nodes)")
}

/// An address, and a port if one was given: `10.0.0.5`, `10.0.0.5:7000`, `::1`, `[::1]:0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    /// Which address.
    pub(crate) ip: IpAddr,
    /// Which port; `None` leaves it to the node.
    pub(crate) port: Option<u16>,
}

impl FromStr for Address {
    type Err = ValueError;

    fn from_str(word: &str) -> Result<Self, ValueError> {
        if let Ok(ip) = word.trim_matches(['[', ']']).parse() {
            return Ok(Self { ip, port: None });
        }
        match word.parse::<SocketAddr>() {
            Ok(both) => Ok(Self { ip: both.ip(), port: Some(both.port()) }),
            Err(_) => wanted("an address is 10.0.0.5, 10.0.0.5:7000, fd00::5 or [fd00::5]:7000"),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.ip, port).fmt(f),
            None => self.ip.fmt(f),
        }
    }
}

/// An address that somebody can dial.
pub(crate) fn reachable(word: &str) -> Result<Address, ValueError> {
    let address: Address = word.parse()?;
    if address.ip.is_unspecified() {
        return wanted(
            "it takes an address that others can dial; this one means any of this machine's",
        );
    }
    Ok(address)
}

/// One change to a node's labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Label {
    /// `zone=ber`.
    Set(String, String),
    /// `zone-`.
    Unset(String),
}

impl FromStr for Label {
    type Err = ValueError;

    fn from_str(word: &str) -> Result<Self, ValueError> {
        if let Some((key, value)) = word.split_once('=') {
            let plain = value.chars().all(|c| c.is_ascii_graphic());
            if value.is_empty() || !plain || value.len() > LABEL_MAX {
                return wanted("a label's value is 1 to 128 visible ASCII characters");
            }
            return Ok(Self::Set(name(key)?, value.to_owned()));
        }
        match word.strip_suffix('-') {
            Some(key) => Ok(Self::Unset(name(key)?)),
            None => wanted("it takes key=value to set a label and key- to take it away"),
        }
    }
}

/// A ticket, as far as can be told without reading it: `mesh1-…`, or `-` for standard input.
pub(crate) fn ticket(word: &str) -> Result<String, ValueError> {
    let word = word.trim();
    if word == "-" || word.to_ascii_lowercase().starts_with("mesh1-") {
        return Ok(word.to_owned());
    }
    wanted(
        "a ticket begins with mesh1- and comes from mesh ticket new; - reads it from standard input",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_can_dial_everywhere() {
        assert!(reachable("203.0.113.7").is_ok() && reachable("[fd00::5]:7").is_ok());
        assert!(reachable("0.0.0.0").is_err() && reachable("[::]:6374").is_err());
    }

    #[test]
    fn durations_are_a_whole_number_and_one_unit() {
        for (word, ms) in [
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("6h", 21_600_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(duration(word), Ok(Duration::from_millis(ms)), "{word}");
        }
        for word in ["", "5", "s", "1.5h", "-3s", "1h30m", "5 m", "6H", "99999999999999999999s"] {
            assert!(duration(word).is_err(), "{word:?}");
        }
        assert!(duration("18446744073709551615d").is_err());
    }

    #[test]
    fn sizes_tell_binary_from_decimal_units() {
        for (word, bytes) in [
            ("512MiB", 512 << 20),
            ("10GiB", 10 << 30),
            ("500MB", 500_000_000),
            ("10GB", 10_000_000_000),
            ("0B", 0),
        ] {
            assert_eq!(size(word), Ok(bytes), "{word}");
        }
        for word in ["", "10", "10G", "1.5GiB", "GiB", "99999999999TiB"] {
            assert!(size(word).is_err(), "{word:?}");
        }
    }

    #[test]
    fn names_are_what_the_conventions_say() {
        for word in ["a", "0", "gpu-1", "clinic_a.north", &"a".repeat(63)] {
            assert_eq!(name(word).as_deref(), Ok(word));
        }
        for word in ["", "-a", ".a", "GPU", "a b", "a/b", "ä", &"a".repeat(64)] {
            assert!(name(word).is_err(), "{word:?}");
        }
    }

    #[test]
    fn a_node_is_named_by_name_or_id_and_never_by_a_path() {
        assert_eq!(reference("A7F3").as_deref(), Ok("a7f3"));
        assert!(reference(&"f".repeat(64)).is_ok());
        for word in ["", "..", "../x", "a/b", "a?b", "a b", "a%2f", &"f".repeat(65)] {
            assert!(reference(word).is_err(), "{word:?}");
        }
    }

    #[test]
    fn an_address_may_come_with_its_port() {
        for (word, shown) in [
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("10.0.0.5", "10.0.0.5"),
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("[fd00::5]:7000", "[fd00::5]:7000"),
        ] {
            assert_eq!(word.parse::<Address>().unwrap().to_string(), shown);
        }
        for word in ["", "localhost", "10.0.0.5:", "10.0.0.5:99999", "10.0.0"] {
            assert!(word.parse::<Address>().is_err(), "{word:?}");
        }
    }

    #[test]
    fn a_label_is_set_or_taken_away() {
        assert_eq!("zone=ber".parse(), Ok(Label::Set("zone".into(), "ber".into())));
        assert_eq!("zone-".parse(), Ok(Label::Unset("zone".into())));
        assert_eq!("url=a=b".parse(), Ok(Label::Set("url".into(), "a=b".into())));
        for word in ["zone", "=x", "-", "zone=", "Zone=x", "zone=a b"] {
            assert!(word.parse::<Label>().is_err(), "{word:?}");
        }
    }

    #[test]
    fn what_is_no_ticket_is_seen_before_anything_is_done() {
        assert!(ticket(" MESH1-abc-def-ghi\n").is_ok() && ticket("-").is_ok());
        assert!(ticket("mesh2-abc").is_err() && ticket("SWMTKN-1").is_err());
    }
}
