//! Settings: defaults, and where each value came from.
//!
//! A flag goes before `MESH_<KEY>` in the environment, that before `config.toml`, that before the
//! default in `default.toml`, which is part of the binary. `mesh config` shows each value and its origin.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use toml::{Table, Value};

use crate::state::name::Name;

/// The defaults, with their reasons.
pub const DEFAULTS: &str = include_str!("../default.toml");

/// The first of the three ports, if it is free.
pub const FIRST_PORT: u16 = 6374;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Typed.
    Flag,
    /// The environment.
    Environment(String),
    /// The directory's file.
    File,
    /// Nobody said anything.
    Default,
}

impl Origin {
    /// As shown.
    pub fn text(&self) -> String {
        match self {
            Origin::Flag => "flag".into(),
            Origin::Environment(name) => name.clone(),
            Origin::File => "config.toml".into(),
            Origin::Default => "default".into(),
        }
    }
}

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("could not read {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{} is not TOML: {message}", path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Where and what.
        message: String,
    },
    /// There is no such setting.
    #[error("there is no setting {key:?}; did you mean {near:?}?")]
    Unknown {
        /// What was found.
        key: String,
        /// The nearest that exists.
        near: String,
    },
    /// A value that does not fit.
    #[error("{key} = {value} ({origin}): {want}")]
    Value {
        /// Which setting.
        key: String,
        /// The value.
        value: String,
        /// Where it came from.
        origin: String,
        /// What it should be.
        want: &'static str,
    },
}

/// The settings of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// What it is called; `None` for the host's name.
    pub name: Option<Name>,
    /// Where it listens.
    pub listen: Vec<IpAddr>,
    /// The data plane's port; zero for any.
    pub data_port: u16,
    /// The overlay's port; zero for any.
    pub overlay_port: u16,
    /// Where others can reach it; a port of zero means its own.
    pub advertise: Vec<SocketAddr>,
    /// The HTTP API's address on TCP.
    pub api_listen: Option<SocketAddr>,
    /// What a Host header may say there, beside that address.
    pub api_hosts: Vec<String>,
    /// Whether to look for members by multicast.
    pub mdns: bool,
    /// Whether it is willing to vote.
    pub votes: bool,
    /// What it shares its fate with.
    pub domain: Option<Name>,
    /// Each value as text, and where it came from.
    pub origins: BTreeMap<String, (Value, Origin)>,
}

impl Config {
    /// Puts the layers together. `flags` holds what was typed.
    pub fn load(
        file: &std::path::Path,
        flags: &Table,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        Self::resolve(&Self::stored(file)?, flags, environment)
    }

    /// What a file holds; nothing where there is none.
    pub fn stored(file: &std::path::Path) -> Result<Table, ConfigError> {
        match std::fs::read_to_string(file) {
            Ok(text) => parse(file, &text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Table::new()),
            Err(source) => Err(ConfigError::Read { path: file.to_path_buf(), source }),
        }
    }

    /// Puts the layers together, with what a file would hold.
    pub fn resolve(
        stored: &Table,
        flags: &Table,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let defaults: Table = DEFAULTS.parse().expect("a test reads the defaults");
        for key in stored.keys().chain(flags.keys()) {
            if !defaults.contains_key(key) {
                return Err(unknown(key, &defaults));
            }
        }
        let mut origins = BTreeMap::new();
        for (key, default) in &defaults {
            let variable = format!("MESH_{}", key.to_uppercase());
            let found = if let Some(value) = flags.get(key) {
                (value.clone(), Origin::Flag)
            } else if let Some(text) = environment(&variable) {
                (like(default, &text), Origin::Environment(variable))
            } else if let Some(value) = stored.get(key) {
                (value.clone(), Origin::File)
            } else {
                (default.clone(), Origin::Default)
            };
            origins.insert(key.clone(), found);
        }
        let layers = Layers(&origins);
        Ok(Self {
            name: layers.name("name")?,
            listen: layers.each("listen", "a list of IP addresses", |text| text.parse().ok())?,
            data_port: layers.port("data_port")?,
            overlay_port: layers.port("overlay_port")?,
            advertise: layers.each(
                "advertise",
                "a list of IP addresses, with or without a port",
                |text| {
                    let bare = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0));
                    text.parse().or(bare).ok()
                },
            )?,
            api_listen: layers.api_listen()?,
            api_hosts: layers.each("api_hosts", "a list of hosts, with or without a port", host)?,
            mdns: layers.flag("mdns")?,
            votes: layers.flag("votes")?,
            domain: layers.name("domain")?,
            origins,
        })
    }

    /// The text of a `config.toml` that holds `values`.
    pub fn to_file(values: &Table) -> String {
        format!(
            "# Settings of this node; `mesh config` shows them all with their origins.\n{values}"
        )
    }
}

struct Layers<'a>(&'a BTreeMap<String, (Value, Origin)>);

impl Layers<'_> {
    fn value(&self, key: &str) -> &Value {
        &self.0.get(key).expect("every key that is asked for has a default").0
    }

    fn wrong(&self, key: &str, want: &'static str) -> ConfigError {
        let (value, origin) = self.0.get(key).expect("as in value()");
        ConfigError::Value {
            key: key.to_owned(),
            value: value.to_string(),
            origin: origin.text(),
            want,
        }
    }

    fn text(&self, key: &str) -> Result<&str, ConfigError> {
        self.value(key).as_str().ok_or_else(|| self.wrong(key, "it must be text"))
    }

    fn flag(&self, key: &str) -> Result<bool, ConfigError> {
        self.value(key).as_bool().ok_or_else(|| self.wrong(key, "it must be true or false"))
    }

    fn port(&self, key: &str) -> Result<u16, ConfigError> {
        let port = self.value(key).as_integer().and_then(|port| u16::try_from(port).ok());
        port.ok_or_else(|| self.wrong(key, "it must be a port from 0 to 65535"))
    }

    /// Without a port of its own it has the third of the node's.
    fn api_listen(&self) -> Result<Option<SocketAddr>, ConfigError> {
        let text = self.text("api_listen")?;
        if text.is_empty() {
            return Ok(None);
        }
        let third = match self.port("data_port")? {
            0 => Some(0),
            first => first.checked_add(2),
        };
        let bare = || Some(SocketAddr::new(text.parse().ok()?, third?));
        let address = text.parse().ok().or_else(bare);
        let want = "an address, with a port or without, such as 127.0.0.1:6376";
        address.map(Some).ok_or_else(|| self.wrong("api_listen", want))
    }

    fn name(&self, key: &str) -> Result<Option<Name>, ConfigError> {
        match self.text(key)? {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                self.wrong(key, "a name has 1 to 63 of a-z 0-9 . _ - and begins with a-z or 0-9")
            }),
        }
    }

    fn each<T>(
        &self,
        key: &str,
        want: &'static str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Vec<T>, ConfigError> {
        let wrong = || self.wrong(key, want);
        let list = self.value(key).as_array().ok_or_else(wrong)?;
        list.iter().map(|one| one.as_str().and_then(&read).ok_or_else(wrong)).collect()
    }
}

/// A host as a Host header names it.
fn host(text: &str) -> Option<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
    (!text.is_empty() && text.chars().all(fits)).then(|| text.to_owned())
}

/// Text from the environment, as the kind of value that the default is.
fn like(default: &Value, text: &str) -> Value {
    match default {
        Value::Boolean(_) => text.parse().map_or_else(|_| Value::from(text), Value::Boolean),
        Value::Integer(_) => text.parse().map_or_else(|_| Value::from(text), Value::Integer),
        Value::Array(_) => {
            let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
            Value::Array(words.map(Value::from).collect())
        }
        _ => Value::from(text),
    }
}

fn parse(path: &std::path::Path, text: &str) -> Result<Table, ConfigError> {
    text.parse().map_err(|error: toml::de::Error| ConfigError::Syntax {
        path: path.to_path_buf(),
        message: error.to_string().lines().map(str::trim).collect::<Vec<_>>().join(" "),
    })
}

fn unknown(key: &str, known: &Table) -> ConfigError {
    let near = known.keys().min_by_key(|one| (!one.starts_with(key), distance(one, key)));
    let near = near.cloned().unwrap_or_default();
    ConfigError::Unknown { key: key.to_owned(), near }
}

/// How many letters must change to make one word of the other.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let cost = before + usize::from(x != *y);
            before = row[j + 1];
            row[j + 1] = cost.min(before + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Table {
        text.parse().unwrap()
    }

    fn nothing(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn the_defaults_are_sound() {
        let config = Config::resolve(&Table::new(), &Table::new(), nothing).unwrap();
        assert_eq!(config.data_port, FIRST_PORT);
        assert_eq!(config.listen.len(), 2);
        assert!(config.votes && !config.mdns && config.api_listen.is_none());
    }

    #[test]
    fn a_flag_goes_before_the_environment_before_the_file_before_the_default() {
        let stored = table("data_port = 1\noverlay_port = 2\nmdns = true");
        let environment = |key: &str| match key {
            "MESH_DATA_PORT" => Some("3".to_owned()),
            "MESH_OVERLAY_PORT" => Some("4".to_owned()),
            "MESH_LISTEN" => Some("10.0.0.1, ::1".to_owned()),
            _ => None,
        };
        let config = Config::resolve(&stored, &table("data_port = 5"), environment).unwrap();
        assert_eq!((config.data_port, config.overlay_port, config.mdns), (5, 4, true));
        assert_eq!(config.listen.len(), 2);
        let origin = |key: &str| config.origins[key].1.text();
        assert_eq!(origin("data_port"), "flag");
        assert_eq!(origin("overlay_port"), "MESH_OVERLAY_PORT");
        assert_eq!(origin("mdns"), "config.toml");
        assert_eq!(origin("votes"), "default");
    }

    #[test]
    fn an_unknown_key_names_the_nearest() {
        let error = Config::resolve(&table("lisen = []"), &Table::new(), nothing).unwrap_err();
        assert!(error.to_string().contains("did you mean \"listen\""), "{error}");
        let error = Config::resolve(&table("api = \"\""), &Table::new(), nothing).unwrap_err();
        assert!(error.to_string().contains("did you mean \"api_"), "{error}");
    }

    #[test]
    fn the_api_has_the_third_port_unless_it_has_its_own() {
        let api = |text: &str| {
            let config = Config::resolve(&table(text), &Table::new(), nothing);
            config.map(|config| config.api_listen.map(|at| at.to_string()))
        };
        let is = |text: &str, want: &str| assert_eq!(api(text).unwrap().as_deref(), Some(want));
        is("api_listen = \"127.0.0.1\"", "127.0.0.1:6376");
        is("api_listen = \"::1\"\ndata_port = 7000", "[::1]:7002");
        is("api_listen = \"127.0.0.1\"\ndata_port = 0", "127.0.0.1:0");
        is("api_listen = \"127.0.0.1:80\"\ndata_port = 7000", "127.0.0.1:80");
        assert!(api("api_listen = \"127.0.0.1\"\ndata_port = 65535").is_err());
        assert!(api("api_listen = \"here\"").is_err());
    }

    #[test]
    fn a_value_that_does_not_fit_says_what_would() {
        for text in [
            "votes = 3",
            "data_port = 70000",
            "name = \"Ä\"",
            "listen = [\"here\"]",
            "api_hosts = [\"a b\"]",
        ] {
            let error = Config::resolve(&table(text), &Table::new(), nothing).unwrap_err();
            assert!(error.to_string().contains("config.toml"), "{error}");
        }
    }
}
