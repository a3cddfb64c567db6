//! What a file runs: `run`, or `[[task]]`s, and how many of each.

use toml::Spanned;
use toml::de::DeValue;

use super::super::spec::{MAX_GROUPS, MAX_TASKS, Resources};
use super::error::Mistakes;
use super::parts::{self, Command, Ports};
use super::section::{Section, kind, name};
use super::training::Kind;
use crate::state::name::Name;

/// The one group of a job without `[[task]]`.
const ONLY_GROUP: &str = "worker";

/// Tasks that are alike.
#[derive(Debug, Clone)]
pub(super) struct GroupFile {
    pub(super) name: Name,
    pub(super) count: u32,
    pub(super) command: Command,
    pub(super) image: Option<Spanned<String>>,
    pub(super) resources: Resources,
    pub(super) ports: Ports,
}

/// All that is run.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Empty only if something is wrong.
    pub(super) groups: Vec<GroupFile>,
    pub(super) is_gang: bool,
    pub(super) code: Option<Spanned<String>>,
}

/// What `run` says.
#[derive(Default)]
struct Run {
    command: Option<Command>,
    image: Option<Spanned<String>>,
    code: Option<Spanned<String>>,
}

/// Reads it. With `each`, how many tasks there are is settled elsewhere.
pub(super) fn work(top: &Section<'_>, each: bool, of: Kind, mistakes: &mut Mistakes) -> Work {
    let needs = top.section("resources", "resources", mistakes);
    let needs = parts::resources(needs.as_ref(), &Resources::default(), mistakes);
    let ports = top.section("ports", "ports", mistakes);
    let ports = parts::ports(ports.as_ref(), mistakes);
    let array = top.whole("array", 1, MAX_TASKS, mistakes);
    let gang = top.section("gang", "gang", mistakes);
    let is_gang = gang.is_some();
    let workers = gang.and_then(|gang| {
        gang.need("workers", mistakes);
        gang.whole("workers", 1, MAX_TASKS, mistakes)
    });
    let run = read_run(top, of, mistakes);
    if each {
        only_each(top, mistakes);
    }
    if top.get("task").is_some() {
        only_tasks(top, mistakes);
        let groups = tasks(top, each, &run, &needs, mistakes);
        return Work { groups, is_gang: !each, code: run.code };
    }
    if top.get("array").is_some() && top.get("gang").is_some() {
        let message = "an `array` is no [gang]: its tasks know nothing of one another";
        mistakes.add(top.at("gang"), message, "leave one of them out");
    }
    if array.is_some() {
        for port in ports.values().filter(|port| port.get_ref().is_some()) {
            let message = "tasks of an `array` can be on one node, and cannot share a port there";
            mistakes.add(port.span(), message, "write \"auto\"");
        }
    }
    let name = ONLY_GROUP.parse().expect("it is a name by the conventions");
    let count = array.or(workers).map_or(1, Spanned::into_inner);
    let group = run.command.map(|command| GroupFile {
        name,
        count,
        command,
        image: run.image,
        resources: needs,
        ports,
    });
    Work { groups: group.into_iter().collect(), is_gang, code: run.code }
}

fn read_run(top: &Section<'_>, of: Kind, mistakes: &mut Mistakes) -> Run {
    let has_tasks = top.get("task").is_some();
    let Some(value) = top.get("run") else {
        if !has_tasks {
            top.need("run", mistakes);
        }
        return Run::default();
    };
    if !value.get_ref().is_table() {
        if has_tasks {
            command_twice(top, "run", mistakes);
        }
        return Run { command: parts::command(top, "run", value, mistakes), ..Run::default() };
    }
    let Some(section) = top.section("run", "run", mistakes) else { return Run::default() };
    let command = match section.get("command") {
        Some(value) => {
            if has_tasks {
                command_twice(&section, "command", mistakes);
            }
            if section.get("trainer").is_some() {
                let message = "there is a `command`, and a `trainer` that would take its place";
                mistakes.add(section.at("trainer"), message, "leave one of them out");
            }
            parts::command(&section, "command", value, mistakes)
        }
        None if section.get("trainer").is_some() => {
            if has_tasks {
                command_twice(&section, "trainer", mistakes);
            }
            only_trainer(&section, of, mistakes);
            parts::trainer(&section, mistakes)
        }
        None => {
            if !has_tasks {
                section.need("command", mistakes);
            }
            None
        }
    };
    Run {
        command,
        image: section.read("image", mistakes, parts::image),
        code: section.read("code", mistakes, parts::code),
    }
}

/// Says what does not go with the built-in trainer.
fn only_trainer(section: &Section<'_>, of: Kind, mistakes: &mut Mistakes) {
    if of == Kind::Plain {
        let message = "the built-in trainer trains in rounds, and this job has none";
        let fix = "write `kind = \"federated\"` above the first [section]";
        mistakes.add(section.at("trainer"), message, fix);
    }
    if section.get("image").is_some() {
        let message = "the built-in trainer is a part of mesh, and runs in no image";
        mistakes.add(section.at("image"), message, "leave one of them out");
    }
}

fn command_twice(of: &Section<'_>, key: &str, mistakes: &mut Mistakes) {
    let message = "each [[task]] has a command of its own, and there is one beside them";
    mistakes.add(of.at(key), message, "leave this one out");
}

/// Says what cannot stand beside `each`.
fn only_each(top: &Section<'_>, mistakes: &mut Mistakes) {
    for key in ["array", "gang"].into_iter().filter(|key| top.get(key).is_some()) {
        let message =
            format!("`{key}` says how many tasks there are, and so does `each` in [place]");
        mistakes.add(top.at(key), message, "leave one of them out");
    }
}

/// Says what cannot stand beside `[[task]]`s.
fn only_tasks(top: &Section<'_>, mistakes: &mut Mistakes) {
    let others = [
        ("array", "`array` does not go with [[task]]s", "write `count` in each of them"),
        ("gang", "[[task]]s are a gang already", "write `count` in each of them"),
        ("ports", "[ports] does not say which [[task]] listens", "write `ports` in the [[task]]"),
    ];
    for (key, message, fix) in others {
        if top.get(key).is_some() {
            mistakes.add(top.at(key), message, fix);
        }
    }
}

fn tasks(
    top: &Section<'_>,
    each: bool,
    run: &Run,
    needs: &Resources,
    mistakes: &mut Mistakes,
) -> Vec<GroupFile> {
    let Some(value) = top.get("task") else { return Vec::new() };
    let items = match value.get_ref() {
        DeValue::Array(items) if items.iter().all(|item| item.get_ref().is_table()) => items,
        DeValue::Table(_) => {
            let message = "there can be several tasks: their brackets are double";
            mistakes.add(top.at("task"), message, "write `[[task]]`");
            return Vec::new();
        }
        _ => {
            let message = format!("`task` is a section, and this is {}", kind(value));
            mistakes.add(value.span(), message, "write `[[task]]`");
            return Vec::new();
        }
    };
    if items.is_empty() || items.len() > MAX_GROUPS {
        let message = format!("there are {} kinds of task", items.len());
        mistakes.add(top.at("task"), message, format!("from 1 to {MAX_GROUPS} will do"));
        return Vec::new();
    }
    if each && items.len() > 1 {
        let message = "`each` in [place] takes one kind of task, and here are several";
        mistakes.add(top.at("task"), message, "make them jobs of their own");
    }
    let mut groups: Vec<GroupFile> = Vec::new();
    let mut total = 0u32;
    for item in items {
        let Some(table) = item.get_ref().as_table() else { continue };
        let section = Section::new("task", item.span(), table, mistakes);
        let Some(group) = task(&section, each, run, needs, mistakes) else { continue };
        if groups.iter().any(|other| other.name == group.name) {
            let message = format!("two [[task]]s are called `{}`", group.name);
            mistakes.add(section.at("name"), message, "call one of them differently");
        }
        total = total.saturating_add(group.count);
        if total > MAX_TASKS {
            let message = format!("together these are more than {MAX_TASKS} tasks");
            mistakes.add(section.at("count"), message, format!("at most {MAX_TASKS}"));
            break;
        }
        groups.push(group);
    }
    groups
}

fn task(
    section: &Section<'_>,
    each: bool,
    run: &Run,
    needs: &Resources,
    mistakes: &mut Mistakes,
) -> Option<GroupFile> {
    section.need("name", mistakes);
    section.need("command", mistakes);
    let name = section.read("name", mistakes, name);
    let count = section.whole("count", 1, MAX_TASKS, mistakes);
    if each && section.get("count").is_some() {
        let message = "`count` says how many tasks there are, and so does `each` in [place]";
        mistakes.add(section.at("count"), message, "leave one of them out");
    }
    let command = section.get("command");
    let command = command.and_then(|value| parts::command(section, "command", value, mistakes));
    let image = section.read("image", mistakes, parts::image);
    let own = section.section("resources", "resources", mistakes);
    let resources = parts::resources(own.as_ref(), needs, mistakes);
    let ports = section.section("ports", "ports", mistakes);
    let ports = parts::ports(ports.as_ref(), mistakes);
    Some(GroupFile {
        name: name?.into_inner(),
        count: count.map_or(1, Spanned::into_inner),
        command: command?,
        image: image.or_else(|| run.image.clone()),
        resources,
        ports,
    })
}
