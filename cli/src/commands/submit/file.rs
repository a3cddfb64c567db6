//! The job.toml that is to be submitted: read and checked here, with what comes along.
//!
//! Holds secrets: there is no `Debug` of it, and no error shows one.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use mesh_node::job::file::{FileError, JobFile, MAX_FILE_BYTES, MAX_SECRET_BYTES, SecretFrom};
use serde_json::{Value, json};

use crate::report::{Code, Report};
use crate::value::Param;
use crate::view::clean;

/// What stands for standard input.
const STDIN: &str = "-";

/// A file that is right in itself, with the values that are not in it.
pub(super) struct Draft {
    /// What it is called, as it was typed.
    called: String,
    text: String,
    file: JobFile,
    /// What it says of paths is meant from here.
    base: PathBuf,
    set: BTreeMap<String, String>,
    secrets: BTreeMap<String, String>,
    /// The file itself and those of its secrets: they do not go along with the code.
    private: Vec<PathBuf>,
}

impl Draft {
    /// Reads a file and all that it points at, but for its code.
    pub(super) fn read(path: &Path, set: &[Param]) -> Result<Self, Report> {
        let is_stdin = path.as_os_str() == STDIN;
        let called =
            if is_stdin { "job.toml".to_owned() } else { clean(&path.display().to_string()) };
        let text = text(path, is_stdin, &called)?;
        let file = JobFile::parse(&text).map_err(|error| wrong(&error, &called))?;
        let base = match path.parent() {
            Some(parent) if !is_stdin && parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let set = parameters(&file, set, &called)?;
        let mut private = if is_stdin { Vec::new() } else { vec![path.to_owned()] };
        let mut secrets = BTreeMap::new();
        for (variable, from) in file.secrets_wanted() {
            secrets.insert(variable.to_owned(), secret(variable, from, &base)?);
            if let SecretFrom::File(path) = from {
                private.push(base.join(path));
            }
        }
        Ok(Self { called, text, file, base, set, secrets, private })
    }

    /// What a node is told of it.
    pub(super) fn body(&self) -> Value {
        json!({ "file": self.text, "set": self.set, "secrets": self.secrets })
    }

    /// Where its code is, if it has some.
    pub(super) fn code_dir(&self) -> Result<Option<PathBuf>, Report> {
        let Some(code) = self.file.code() else { return Ok(None) };
        let dir = self.base.join(code);
        let unfit = |cause: String| {
            let message = format!("the code of the job cannot be packed: {}", dir.display());
            let hint = format!("[run] code in {} names a directory beside it", self.called);
            Report::new(Code::Failed, message, cause, hint)
        };
        let real = dir.canonicalize().map_err(|error| unfit(error.to_string()))?;
        match real.is_dir() {
            true => Ok(Some(real)),
            false => Err(unfit("it is a file".into())),
        }
    }

    /// Files that do not go along with the code.
    pub(super) fn private_files(&self) -> Vec<PathBuf> {
        self.private.iter().filter_map(|path| path.canonicalize().ok()).collect()
    }

    /// A node's report of a mistake in the file, with the name that the file has here.
    pub(super) fn shown(&self, report: Report) -> Report {
        let cause = report.cause.replace("--> job.toml:", &format!("--> {}:", self.called));
        Report { cause, ..report }
    }
}

fn text(path: &Path, is_stdin: bool, called: &str) -> Result<String, Report> {
    let unread = |cause: String, code: Code| {
        let hint = "mesh job new > job.toml writes one to start from";
        Report::new(code, format!("{called} cannot be read"), cause, hint)
    };
    let failed = |error: std::io::Error| {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => Code::NotFound,
            _ => Code::Failed,
        };
        unread(error.to_string(), code)
    };
    // One byte more than a file may have: whoever parses it says that it is too large.
    let most = MAX_FILE_BYTES as u64 + 1;
    let mut bytes = Vec::new();
    if is_stdin {
        std::io::stdin().lock().take(most).read_to_end(&mut bytes).map_err(failed)?;
    } else {
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(most).read_to_end(&mut bytes).map_err(failed)?;
    }
    // A file that is too large may have been cut within a character.
    if bytes.len() > MAX_FILE_BYTES {
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    String::from_utf8(bytes).map_err(|_| unread("it is not UTF-8".into(), Code::Failed))
}

/// A mistake in the file, with the line and a caret beneath.
fn wrong(error: &FileError, called: &str) -> Report {
    let message = error.mistakes.first().map(|mistake| mistake.message.clone());
    let hint = "mesh help job.toml explains every key";
    Report::new(Code::Failed, message.unwrap_or_default(), error.told(called), hint)
}

/// The values that were given on the command line, all of which the file has to know.
fn parameters(
    file: &JobFile,
    set: &[Param],
    called: &str,
) -> Result<BTreeMap<String, String>, Report> {
    let known: Vec<&str> = file.params().keys().map(|name| name.as_str()).collect();
    if let Some(Param { name, .. }) = set.iter().find(|param| !known.contains(&&*param.name)) {
        let cause = match known.is_empty() {
            true => "it has none: there is no [params]".to_owned(),
            false => format!("it has {}", known.join(", ")),
        };
        let message = format!("{called} has no parameter {name}");
        return Err(Report::new(
            Code::Usage,
            message,
            cause,
            "--set NAME=VALUE with one that it has",
        ));
    }
    Ok(set.iter().map(|param| (param.name.clone(), param.value.clone())).collect())
}

/// The value of a secret that is not in the file.
fn secret(variable: &str, from: &SecretFrom, base: &Path) -> Result<String, Report> {
    let missing = |cause: String, hint: String| {
        Report::new(Code::Failed, format!("the secret {variable} is missing"), cause, hint)
    };
    let value = match from {
        SecretFrom::Env(name) => std::env::var(name).map_err(|error| {
            let cause = match error {
                std::env::VarError::NotPresent => format!("there is no variable {name} here"),
                std::env::VarError::NotUnicode(_) => format!("the variable {name} is not UTF-8"),
            };
            missing(cause, format!("export {name}=…, then the same command again"))
        })?,
        SecretFrom::File(path) => {
            let path = base.join(path);
            let shown = path.display();
            let hint = || format!("write the secret to {shown}, and nothing else");
            let mut bytes = Vec::new();
            // The newline at its end, and one more that shows that it is too long.
            let most = MAX_SECRET_BYTES as u64 + 3;
            let read =
                std::fs::File::open(&path).and_then(|file| file.take(most).read_to_end(&mut bytes));
            read.map_err(|error| missing(format!("{shown}: {error}"), hint()))?;
            let text = String::from_utf8(bytes);
            let text = text.map_err(|_| missing(format!("{shown} is not UTF-8"), hint()))?;
            // As an editor leaves it: the end of the line is no part of it.
            let text = text.strip_suffix('\n').unwrap_or(&text);
            text.strip_suffix('\r').unwrap_or(text).to_owned()
        }
    };
    if value.is_empty() || value.len() > MAX_SECRET_BYTES {
        let cause = match value.is_empty() {
            true => "it is empty".to_owned(),
            false => format!("it is longer than {} KiB", MAX_SECRET_BYTES >> 10),
        };
        let hint = "mesh help job.toml, under [secrets]";
        return Err(Report::new(
            Code::Failed,
            format!("the secret {variable} cannot be used"),
            cause,
            hint,
        ));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(dir: &Path, text: &str) -> PathBuf {
        let path = dir.join("a.toml");
        std::fs::write(&path, text).unwrap();
        path
    }

    fn refused(path: &Path, set: &[Param]) -> Report {
        match Draft::read(path, set) {
            Err(report) => report,
            Ok(_) => panic!("it was taken"),
        }
    }

    #[test]
    fn a_mistake_is_told_with_its_line_and_the_name_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path(), "name = \"x\"\nrun = \"true\"\n[resorces]\ncpus = 1\n");
        let report = refused(&path, &[]);
        assert_eq!(report.code, Code::Failed);
        assert!(report.cause.starts_with(&report.message), "{report:?}");
        assert!(report.cause.contains(&format!("--> {}:3:2", path.display())), "{report:?}");
        assert!(report.cause.contains("resources"), "{report:?}");
        assert_eq!(refused(&dir.path().join("absent"), &[]).code, Code::NotFound);
        assert_eq!(refused(dir.path(), &[]).code, Code::Failed);
    }

    #[test]
    fn parameters_are_those_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path(), "name = \"x\"\nrun = \"echo {lr}\"\n[params]\nlr = 0.1\n");
        let draft = Draft::read(&path, &["lr=0.2".parse().unwrap()]);
        assert_eq!(draft.map(|draft| draft.body()["set"].clone()).unwrap(), json!({ "lr": "0.2" }));
        let report = refused(&path, &["rate=1".parse().unwrap()]);
        assert_eq!((report.code, report.cause.as_str()), (Code::Usage, "it has lr"));
    }

    #[test]
    fn secrets_are_found_beside_the_file_and_stay_there() {
        let dir = tempfile::tempdir().unwrap();
        let text = "name = \"x\"\nrun = \"true\"\n[secrets]\nTOKEN = \"file:token.txt\"\n";
        let path = written(dir.path(), text);
        let report = refused(&path, &[]);
        assert!(
            report.message.contains("TOKEN") && report.cause.contains("token.txt"),
            "{report:?}"
        );
        std::fs::write(dir.path().join("token.txt"), "hunter2\r\n").unwrap();
        let Ok(draft) = Draft::read(&path, &[]) else { panic!("it was refused") };
        assert_eq!(draft.body()["secrets"], json!({ "TOKEN": "hunter2" }));
        let real = dir.path().canonicalize().unwrap();
        assert_eq!(draft.private_files(), [real.join("a.toml"), real.join("token.txt")]);
        for (content, cause) in [("\n", "empty"), (&*"x".repeat(9000), "longer")] {
            std::fs::write(dir.path().join("token.txt"), content).unwrap();
            let report = refused(&path, &[]);
            assert!(report.cause.contains(cause) && !report.cause.contains("xxx"), "{report:?}");
        }
        let text = "name = \"x\"\nrun = \"true\"\n[secrets]\nT = \"env:MESH_TEST_IS_NOT_SET\"\n";
        let report = refused(&written(dir.path(), text), &[]);
        assert!(report.hint.contains("export MESH_TEST_IS_NOT_SET"), "{report:?}");
    }

    #[test]
    fn code_is_a_directory_beside_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let with = |code: &str| {
            let text = format!("name = \"x\"\n[run]\ncommand = \"true\"\ncode = \"{code}\"\n");
            let Ok(draft) = Draft::read(&written(dir.path(), &text), &[]) else { panic!("{text}") };
            draft.code_dir()
        };
        assert_eq!(with(".").unwrap(), Some(dir.path().canonicalize().unwrap()));
        assert!(with("a.toml").is_err_and(|report| report.cause.contains("file")));
        assert!(with("absent").is_err_and(|report| report.hint.contains("a.toml")));
    }
}
