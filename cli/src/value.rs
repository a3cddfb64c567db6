//! What is typed as a value: durations, sizes, names, jobs, parameters, datasets, addresses, labels.
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
    if word.starts_with('-') {
        return wanted(
            "a duration has to be positive: a whole number and a unit, as 30m, 24h or 7d",
        );
    }
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

/// A node: its name, its id, or the beginning of its id. Safe as a part of a path.
pub(crate) fn reference(word: &str) -> Result<String, ValueError> {
    let rule =
        "it takes a name, an id, or the first four or more characters of an id (see mesh nodes)";
    plain(word).map_or_else(|| wanted(rule), Ok)
}

/// A ticket: its id, or the beginning of its id. Safe as a part of a path.
pub(crate) fn ticket_id(word: &str) -> Result<String, ValueError> {
    let rule =
        "it takes the id of a ticket, or its first four or more characters (see mesh ticket ls)";
    plain(word).map_or_else(|| wanted(rule), Ok)
}

/// A request: its id. Safe as a part of a path.
pub(crate) fn request(word: &str) -> Result<String, ValueError> {
    plain(word).map_or_else(|| wanted("it takes the id of a request (see mesh request ls)"), Ok)
}

/// A job: its name, its id, or the beginning of its id. Safe as a part of a path.
pub(crate) fn job(word: &str) -> Result<String, ValueError> {
    let rule = "it takes a name, an id, or the first four or more characters of an id \
                (see mesh jobs --all)";
    plain(word).map_or_else(|| wanted(rule), Ok)
}

/// What may be a name or an id, in small letters.
fn plain(word: &str) -> Option<String> {
    let lower = word.to_ascii_lowercase();
    let first = lower.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    (first && lower.chars().all(in_name) && lower.len() <= REFERENCE_MAX).then_some(lower)
}

/// Another value of a parameter: `lr=0.1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Param {
    /// Which one.
    pub(crate) name: String,
    /// Anything, nothing included.
    pub(crate) value: String,
}

impl FromStr for Param {
    type Err = ValueError;

    fn from_str(word: &str) -> Result<Self, ValueError> {
        match word.split_once('=').map(|(key, value)| (name(key), value)) {
            Some((Ok(name), value)) => Ok(Self { name, value: value.to_owned() }),
            _ => wanted("it takes a parameter of the job.toml and its value, as in lr=0.1"),
        }
    }
}

/// A dataset: `[party/]name[@N|:tag]`. Each part is plain enough to stand in a query as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DataRef {
    /// Whose; `None` is this node's party.
    pub(crate) party: Option<String>,
    /// What it is called.
    pub(crate) name: String,
    /// Which version; `None` leaves it to the command: the newest, or all.
    pub(crate) pick: Option<Pick>,
}

/// Which version of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pick {
    /// `@3`.
    Version(u64),
    /// `:clean`.
    Tag(String),
}

impl DataRef {
    /// This version of the same name.
    pub(crate) fn at(&self, version: u64) -> Self {
        Self { pick: Some(Pick::Version(version)), ..self.clone() }
    }
}

impl FromStr for DataRef {
    type Err = ValueError;

    fn from_str(word: &str) -> Result<Self, ValueError> {
        let rule =
            "a dataset is [PARTY/]NAME, [PARTY/]NAME@VERSION or [PARTY/]NAME:TAG, in a-z 0-9 . _ -";
        let part = |word: &str| name(word).or_else(|_| wanted(rule));
        let (party, rest) = match word.split_once('/') {
            Some((party, rest)) => (Some(part(party)?), rest),
            None => (None, word),
        };
        let (plain, pick) = if let Some((plain, number)) = rest.split_once('@') {
            let digits = number.bytes().all(|byte| byte.is_ascii_digit());
            match number.parse() {
                Ok(version) if digits && version > 0 => (plain, Some(Pick::Version(version))),
                _ => return wanted("a version is a number from 1: NAME@3; a tag is NAME:TAG"),
            }
        } else if let Some((plain, tag)) = rest.split_once(':') {
            (plain, Some(Pick::Tag(part(tag)?)))
        } else {
            (rest, None)
        };
        Ok(Self { party, name: part(plain)?, pick })
    }
}

impl std::fmt::Display for DataRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(party) = &self.party {
            write!(f, "{party}/")?;
        }
        f.write_str(&self.name)?;
        match &self.pick {
            Some(Pick::Version(version)) => write!(f, "@{version}"),
            Some(Pick::Tag(tag)) => write!(f, ":{tag}"),
            None => Ok(()),
        }
    }
}

/// A dataset with all its versions: `[party/]name`.
pub(crate) fn data_name(word: &str) -> Result<DataRef, ValueError> {
    match word.parse()? {
        whole @ DataRef { pick: None, .. } => Ok(whole),
        DataRef { .. } => wanted("it takes the name alone, without a version or a tag"),
    }
}

/// Where a tag stands: at a version, or `none` for nowhere.
pub(crate) fn expected(word: &str) -> Result<Expected, ValueError> {
    match (word, word.trim_start_matches('@').parse()) {
        ("none", _) => Ok(Expected(None)),
        (_, Ok(version)) => Ok(Expected(Some(version))),
        _ => wanted("it takes the version at which the tag stands now, or none if it is new"),
    }
}

/// What [`expected`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expected(pub(crate) Option<u64>);

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
        assert!(duration("-1h").is_err_and(|error| error.0.contains("positive")));
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
    fn each_kind_of_id_says_where_they_are_listed() {
        assert_eq!(ticket_id("3FA9").as_deref(), Ok("3fa9"));
        assert_eq!(request("2048").as_deref(), Ok("2048"));
        for (said, list) in [
            (reference(""), "mesh nodes"),
            (ticket_id("../x"), "mesh ticket ls"),
            (request("a/b"), "mesh request ls"),
            (job("a/b"), "mesh jobs --all"),
        ] {
            assert!(said.as_ref().is_err_and(|error| error.0.contains(list)), "{said:?}");
        }
    }

    #[test]
    fn a_parameter_is_a_name_and_any_value() {
        let param = |word: &str| word.parse::<Param>().map(|param| (param.name, param.value));
        assert_eq!(param("lr=0.1"), Ok(("lr".into(), "0.1".into())));
        assert_eq!(param("opt=a=b c"), Ok(("opt".into(), "a=b c".into())));
        assert_eq!(param("tag="), Ok(("tag".into(), String::new())));
        for word in ["lr", "=1", "LR=1", "", "a b=1"] {
            assert!(param(word).is_err(), "{word:?}");
        }
    }

    #[test]
    fn a_dataset_is_a_name_and_maybe_a_party_a_version_or_a_tag() {
        for word in ["mnist", "mnist@3", "mnist:clean", "clinic-a/xray", "each/xray:v1.0", "a/b@12"]
        {
            assert_eq!(word.parse::<DataRef>().unwrap().to_string(), word);
        }
        let whole: DataRef = "lab/mnist:clean".parse().unwrap();
        assert_eq!(whole.at(7).to_string(), "lab/mnist@7");
        for word in [
            "",
            "MNIST",
            "a/b/c",
            "/a",
            "a/",
            "a@",
            "a@0",
            "a@x",
            "a@+3",
            "a:",
            "a@3:x",
            "a:x@3",
            "a:b:c",
            "../a",
            "./a",
            "a b",
            "a?b",
            "a&b",
            "a%2f",
            "a@99999999999999999999",
        ] {
            assert!(word.parse::<DataRef>().is_err(), "{word:?}");
        }
        assert!(data_name("lab/mnist").is_ok());
        assert!(data_name("mnist@3").is_err() && data_name("mnist:x").is_err());
    }

    #[test]
    fn a_tag_is_expected_at_a_version_or_nowhere() {
        assert_eq!(expected("3"), Ok(Expected(Some(3))));
        assert_eq!(expected("none"), Ok(Expected(None)));
        assert!(expected("").is_err() && expected("clean").is_err());
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
