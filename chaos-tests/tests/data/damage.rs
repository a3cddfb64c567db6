//! What a disk has spoilt.

use std::fs;
use std::time::Duration;

use mesh_chaos_tests::hosts::binary::binary;
use mesh_chaos_tests::hosts::fleet::Plan;
use mesh_chaos_tests::hosts::process::Host;
use mesh_chaos_tests::hosts::until;

use crate::{
    MIB, PATIENCE, SHORT_WAITS, aside, calm, content, data, flip, knows, objects, random_tree,
    text, try_data, until_copies,
};

#[test]
fn a_flipped_bit_is_never_handed_out() {
    let (key, value) = SHORT_WAITS;
    let fleet = Plan::loopback(3).setting(key, value).found().unwrap();
    let host = |name: &str| fleet.hosts.iter().find(|host| host.name == name).unwrap();
    let dir = aside(&fleet.hosts[0], "tree");
    random_tree(&dir, 4, 8 * MIB);
    let largest = |host: &Host| {
        let objects = objects(host).into_iter();
        objects.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap()
    };

    // One of two holders has a bad object, and the third node asks both.
    data(&fleet.hosts[0], &["push", text(&dir), "--copies", "2"]);
    let holders = until_copies(&fleet.hosts[0], "tree", 2);
    let bad = host(holders.iter().find(|name| *name != "n0").unwrap());
    let third = fleet.hosts.iter().find(|host| !holders.contains(&host.name)).unwrap();
    flip(&largest(bad), 3 * MIB);
    knows(third, "tree");
    data(third, &["pull", "tree", text(&aside(third, "pulled"))]);
    assert!(content(&aside(third, "pulled")) == content(&dir), "the bit was handed to another");

    // And it does not hand it to its own people either.
    let whole = |host: &Host| {
        until(PATIENCE, || try_data(host, &["verify", "tree"]).ok().then_some(()))
            .unwrap_or_else(|| panic!("{} is never repaired", host.name));
    };
    whole(bad);
    flip(&largest(bad), 2 * MIB);
    let pulled = data(bad, &["pull", "tree", text(&aside(bad, "laid-out"))]);
    // None, if it was found and mended while nobody had asked for it yet.
    assert!(pulled["mended_objects"].as_u64().is_some_and(|mended| mended <= 1), "{pulled}");
    assert!(content(&aside(bad, "laid-out")) == content(&dir), "the bit was laid out");
    whole(bad);
    let verified = data(bad, &["verify", "tree"]);
    assert_eq!(verified["damaged"].as_array().unwrap().len(), 0, "{verified}");
    until_copies(&fleet.hosts[0], "tree", 2);

    // verify tells what is damaged, and repairs it.
    flip(&largest(bad), MIB);
    let verified = data(bad, &["verify", "tree"]);
    assert_eq!(verified["damaged"].as_array().unwrap().len(), 1, "{verified}");
    assert_eq!(verified["damaged"][0]["path"], "large", "{verified}");
    assert_eq!(verified["repaired"], true, "{verified}");
    // Also what somebody has deleted; and a push does not take it for what is there.
    let lost = largest(bad);
    fs::remove_file(&lost).unwrap();
    let verified = data(bad, &["verify", "tree"]);
    assert!(verified["repaired"] == true && lost.exists(), "{verified}");
    fs::remove_file(&lost).unwrap();
    let pushed = data(bad, &["push", text(&dir), "--name", "again", "--copies", "1"]);
    assert!(lost.exists(), "a push relied on a file that is gone");
    // None, if it was found and mended while nobody had pushed yet.
    assert!(pushed["mended_objects"].as_u64().is_some_and(|mended| mended <= 1), "{pushed}");

    // Where nobody has the right bytes, nobody gets wrong ones.
    let alone = aside(&fleet.hosts[0], "alone");
    random_tree(&alone, 5, 16 * MIB);
    data(&fleet.hosts[0], &["push", text(&alone), "--copies", "1"]);
    flip(&largest(&fleet.hosts[0]), MIB);
    for (host, into) in [(&fleet.hosts[1], "lost"), (&fleet.hosts[0], "lost-too")] {
        let into = aside(host, into);
        knows(host, "alone");
        // It does not wait for longer than it was told.
        let words = ["data", "pull", "alone", text(&into), "--wait", "1s"];
        let said = host.run(binary().unwrap(), &words, Duration::from_secs(25)).unwrap();
        let code = said.status.and_then(|status| status.code());
        assert_eq!(code, Some(124), "{}: {said:?}", host.name);
        assert!(!into.join("large").exists(), "{}: a file with a wrong bit", host.name);
    }
    calm(&fleet);
}
