//! How people speak of data: `[party/]name[@N|:tag]`.

use std::fmt;
use std::str::FromStr;

use super::super::name::Name;

/// Which version of a name is meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pick {
    /// The one with the highest number.
    Latest,
    /// The one with this number: `@3`.
    Number(u32),
    /// The one that this tag stands for: `:clean`.
    Tag(Name),
}

/// A name of data as a person writes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataRef {
    /// The party; the speaker's own where it is left out. `each` stands for every participant.
    pub party: Option<Name>,
    /// The dataset.
    pub name: Name,
    /// The version.
    pub pick: Pick,
}

/// The text does not name data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} does not name data: expected [party/]name[@N|:tag]")]
pub struct ParseDataRefError {
    found: String,
}

impl FromStr for DataRef {
    type Err = ParseDataRefError;

    fn from_str(text: &str) -> Result<Self, ParseDataRefError> {
        parse(text).ok_or_else(|| ParseDataRefError { found: text.chars().take(201).collect() })
    }
}

fn parse(text: &str) -> Option<DataRef> {
    let (party, rest) = match text.split_once('/') {
        Some((party, rest)) => (Some(party.parse().ok()?), rest),
        None => (None, text),
    };
    let (name, pick) = if let Some((name, number)) = rest.split_once('@') {
        (name, Pick::Number(parse_number(number)?))
    } else if let Some((name, tag)) = rest.split_once(':') {
        (name, Pick::Tag(tag.parse().ok()?))
    } else {
        (rest, Pick::Latest)
    };
    Some(DataRef { party, name: name.parse().ok()?, pick })
}

/// A number has one spelling, and is not zero.
fn parse_number(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number > 0 && number.to_string() == text).then_some(number)
}

impl fmt::Display for DataRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(party) = &self.party {
            write!(f, "{party}/")?;
        }
        write!(f, "{}", self.name)?;
        match &self.pick {
            Pick::Latest => Ok(()),
            Pick::Number(number) => write!(f, "@{number}"),
            Pick::Tag(tag) => write!(f, ":{tag}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_reads_back_what_it_prints() {
        for text in ["xray", "clinic-a/xray", "xray@3", "xray:clean", "each/xray@12", "p1/x.y:v1-0"]
        {
            assert_eq!(text.parse::<DataRef>().unwrap().to_string(), text);
        }
        let long = "clinic-a/xray@3".parse::<DataRef>().unwrap();
        assert_eq!(long.party.unwrap().as_str(), "clinic-a");
        assert_eq!((long.name.as_str(), long.pick), ("xray", Pick::Number(3)));
    }

    #[test]
    fn what_names_no_data_is_refused() {
        let long = "a".repeat(64);
        let bad = [
            "",
            "/",
            "a/",
            "/a",
            "a/b/c",
            "a@",
            "a@0",
            "a@01",
            "a@+1",
            "a@-1",
            "a@4294967296",
            "a:",
            "a:b:c",
            "a:b@1",
            "a@1:b",
            "a@1@2",
            "A",
            "a b",
            "a:B",
            "é",
            &long,
        ];
        for text in bad {
            assert!(text.parse::<DataRef>().is_err(), "{text:?}");
        }
    }
}
