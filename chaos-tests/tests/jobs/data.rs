//! What a job reads, what it leaves behind, and what nobody but its tasks gets to see.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use mesh_chaos_tests::hosts::client;
use mesh_chaos_tests::hosts::process::Host;
use mesh_chaos_tests::hosts::until;
use serde_json::Value;

use crate::{Ground, PATIENCE, WAIT, aside, text};

const MIB: usize = 1 << 20;

/// A directory with three files. Of a seed.
fn tree(dir: &Path, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    fs::create_dir_all(dir).unwrap();
    for (name, bytes) in [("large", 3 * MIB), ("one", 1000), ("two", 70_000)] {
        let mut body = vec![0; bytes];
        random.fill(&mut body);
        fs::write(dir.join(name), body).unwrap();
    }
}

/// The files in a directory, with their bytes.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.map(|path| (name(&path), fs::read(&path).unwrap())).collect()
}

/// Reads both datasets, tries to spoil them, and says what there is beside it.
const SCRIPT: &str = r#"
ls -A
for data in "$MESH_DATA_IMAGES" "$MESH_DATA_LABELS"; do
    for file in large new; do
        if (echo spoilt > "$data/$file") 2>/dev/null; then echo "write OK"; else echo "write DENIED"; fi
    done
    if rm -f "$data/one" 2>/dev/null; then echo "remove OK"; else echo "remove DENIED"; fi
done
mkdir out
cp "$MESH_DATA_IMAGES/large" out/large
cat "$MESH_DATA_LABELS/one" "$MESH_DATA_LABELS/two" > out/labels
"#;

#[test]
fn a_job_reads_two_datasets_and_leaves_a_version_that_remembers_them() {
    let ground = Ground::new(3);
    let [first, second, third] = [0, 1, 2];
    for (seed, name) in [(1, "images"), (2, "labels")] {
        let dir = aside(&ground.hosts[first], name);
        tree(&dir, seed);
        ground.data(first, &["push", text(&dir)]);
    }
    let project = aside(&ground.hosts[first], "project");
    fs::create_dir_all(project.join("notes")).unwrap();
    for (name, body) in [
        ("job.sh", SCRIPT),
        ("helper.py", "pass\n"),
        (".meshignore", "# not code\n*.ckpt\nnotes/\n"),
        ("old.ckpt", "large"),
        ("notes/today", "private"),
    ] {
        fs::write(project.join(name), body).unwrap();
    }
    let job = r#"
name = "reads"
[run]
command = ["sh", "job.sh"]
code = "."
[data]
images = "images"
labels = "labels@1"
[output]
result = "out"
[place]
nodes = ["n1"]
"#;
    let file = project.join("job.toml");
    fs::write(&file, ground.marked(job)).unwrap();
    let said = ground.mesh(first, &["submit", text(&file)]);
    assert!(said.ok(), "{said:?}");
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert!(lines.contains(&"job.sh") && lines.contains(&"helper.py"), "{said:?}");
    for behind in ["old.ckpt", "notes", "job.toml"] {
        assert!(!lines.contains(&behind), "{behind} went along: {said:?}");
    }
    let count = |word: &str| lines.iter().filter(|line| **line == word).count();
    match nix::unistd::geteuid().is_root() {
        true => assert_eq!((count("write DENIED"), count("remove DENIED")), (4, 2), "{said:?}"),
        // A task of a node that is not root has the node's own rights: names it may change, in its own directory.
        false => assert!(count("write DENIED") >= 2, "{said:?}"),
    }

    let done = ground.job(first, "reads").unwrap();
    assert_eq!(ground.node_of(&done, 0), second);
    assert_eq!(done["outputs"][0]["ref"], "result@1", "{done}");
    let id = done["id"].as_str().unwrap();
    // Where neither the data nor the job was.
    ground.done(third, id);
    let made = files(&ground.only_version(third, "result"));
    let images = files(&aside(&ground.hosts[first], "images"));
    let labels = files(&aside(&ground.hosts[first], "labels"));
    let expected = BTreeMap::from([
        ("labels".to_owned(), [&labels["one"][..], &labels["two"][..]].concat()),
        ("large".to_owned(), images["large"].clone()),
    ]);
    assert!(made == expected, "what was pulled differs: {:?}", made.keys());
    for (name, before) in [("images", images), ("labels", labels)] {
        let again = files(&ground.only_version(second, name));
        assert!(again == before, "{name} was spoilt where the job ran");
    }

    let shown = ground.data(third, &["show", "result"]);
    assert_eq!(shown["lineage"]["job"], id, "{shown}");
    let mut inputs: Vec<&str> =
        shown["lineage"]["inputs"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    inputs.sort_unstable();
    let of = |name: &str| ground.data(third, &["show", name])["id"].as_str().unwrap().to_owned();
    let mut from = [of("images"), of("labels"), done["code"].as_str().unwrap().to_owned()];
    from.sort_unstable();
    assert_eq!(inputs, from, "{shown}");
    let said = ground.mesh(third, &["data", "show", "result"]);
    assert!(said.stdout.contains(&format!("by job {id}")), "{said:?}");
    // What an output is before it counts does not stay.
    let names = || -> Vec<String> {
        let all = ground.data(third, &["ls", "--all"]);
        let rows = all.as_array().unwrap().iter();
        rows.map(|row| row["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let tidy =
        until(PATIENCE, || (!names().iter().any(|name| name.ends_with(".draft"))).then_some(()));
    assert!(tidy.is_some(), "{:?}", names());
    ground.calm();
}

/// Files of a host's node that hold these words. What is not a plain file is passed over.
fn holding(host: &Host, words: &str) -> Vec<PathBuf> {
    let (mut found, mut dirs) = (Vec::new(), vec![host.data()]);
    while let Some(dir) = dirs.pop() {
        // Files come and go while a node runs.
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(path),
                Ok(kind) if kind.is_file() => {
                    let body = fs::read(&path).unwrap_or_default();
                    if body.windows(words.len()).any(|part| part == words.as_bytes()) {
                        found.push(path);
                    }
                }
                _ => {}
            }
        }
    }
    found
}

/// Nothing that anybody is told about a job, and no log, holds these words.
fn is_told_nowhere(ground: &Ground, id: &str, words: &str) {
    for (number, host) in ground.hosts.iter().enumerate() {
        for path in ["", "/explain"].map(|end| format!("/v1/jobs/{id}{end}")) {
            let answer = host.client().ask("GET", &path, None, client::PATIENCE).unwrap();
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            assert!(!answer.body.to_string().contains(words), "n{number} tells it: {path}");
        }
        for command in [&["jobs", "--all", "--json"][..], &["logs", id, "--json"]] {
            let said = ground.mesh(number, command);
            assert!(said.ok(), "{said:?}");
            assert!(!said.stdout.contains(words), "n{number} tells it: {command:?}");
        }
        for (path, log) in host.logs() {
            assert!(!log.contains(words), "it is in {}", path.display());
        }
    }
}

#[test]
fn a_secret_reaches_its_task_and_is_kept_nowhere() {
    let ground = Ground::new(3);
    let secret: String = (0..32).map(|_| fastrand::lowercase()).collect();
    let project = aside(&ground.hosts[0], "project");
    fs::create_dir_all(&project).unwrap();
    fs::write(project.join("token.txt"), format!("{secret}\n")).unwrap();
    fs::write(project.join("code.txt"), "code").unwrap();
    let job = format!(
        r#"
name = "hush"
[run]
command = '''ls -A; printf 'turned %s\n' "$(printf %s "$TOKEN" | tr a-z b-za)"; {WAIT}'''
code = "."
[secrets]
TOKEN = "file:token.txt"
[place]
nodes = ["n1"]
"#
    );
    let file = project.join("job.toml");
    fs::write(&file, ground.marked(&job)).unwrap();
    let id = crate::submitted(&ground.mesh(0, &["submit", text(&file), "-d", "--json"]));

    // Each letter is the next one: so it is seen to be right, and not seen itself.
    let turned = ground.until_line(2, &id, 0, "turned ");
    let next = |c: char| if c == 'z' { 'a' } else { char::from(c as u8 + 1) };
    assert_eq!(turned, secret.chars().map(next).collect::<String>());
    let printed = ground.printed(2, &id);
    assert!(printed.lines().any(|line| line == "code.txt"), "{printed}");
    assert!(!printed.lines().any(|line| line == "token.txt"), "{printed}");

    let job = ground.until_state(0, &id, "running");
    assert_eq!(job["secrets"], serde_json::json!(["TOKEN"]), "its name may be known");
    let home = ground.home(&job, 0);
    // Whoever starts a task again after the node has to know it. It goes at the end.
    let own = home.ancestors().nth(2).unwrap();
    for host in &ground.hosts {
        let found = holding(host, &secret);
        assert!(found.iter().all(|path| path.starts_with(own)), "it is in {found:?}");
    }
    for host in 0..3 {
        ground.until_state(host, &id, "running");
    }
    is_told_nowhere(&ground, &id, &secret);

    ground.let_go(&job, 0);
    for host in 0..3 {
        ground.done(host, &id);
    }
    for host in &ground.hosts {
        assert_eq!(holding(host, &secret), Vec::<PathBuf>::new(), "on {}", host.name);
    }
    is_told_nowhere(&ground, &id, &secret);
    ground.calm();
}
