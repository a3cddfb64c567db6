//! Datasets of which fewer copies stand than are wanted.

use super::Finding;
use crate::answers::Dataset;
use crate::client::Api;
use crate::view::count;

/// Nothing if there are no datasets, or the node cannot tell of them: that it cannot is said elsewhere.
pub(super) async fn check(api: &Api) -> Option<Finding> {
    let found: Vec<Dataset> = api.get("/v1/data?all=true").await.ok()?.items().ok()?;
    judge(&found)
}

fn judge(found: &[Dataset]) -> Option<Finding> {
    let short: Vec<&Dataset> = found.iter().filter(|data| data.is_short()).collect();
    let Some(first) = short.first() else {
        let well = "every version of a dataset has as many copies as are wanted";
        return (!found.is_empty()).then(|| Finding::ok("data", well));
    };
    let name = first.reference();
    let why = first.shortfall.as_deref().filter(|why| !why.is_empty());
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    let (have, such) = match short.len() {
        1 => ("has", "it is"),
        _ => ("have", "such as"),
    };
    let versions = count(short.len(), "version");
    let message = format!("{versions} {have} fewer copies than wanted, {such} {name}{why}");
    Some(Finding::look("data", message, format!("mesh data show {name}")))
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    fn version(number: u64, copies: Option<u64>, shortfall: Option<&str>) -> Dataset {
        Dataset {
            name: "mnist".into(),
            mine: true,
            version: Some(number),
            copies,
            copies_wanted: copies.map(|_| 3),
            shortfall: shortfall.map(Into::into),
            ..Dataset::default()
        }
    }

    #[test]
    fn versions_that_are_short_of_copies_are_worth_a_look() {
        assert_eq!(judge(&[]), None);
        // Of what another party lists nothing is known.
        let fine = [version(1, Some(3), None), version(2, None, None)];
        assert_eq!(judge(&fine).unwrap().state, State::Ok);
        let one = [version(1, Some(3), None), version(2, Some(1), Some("no room on n2"))];
        let found = judge(&one).unwrap();
        assert_eq!((found.check, found.state), ("data", State::Look));
        let want = "1 version has fewer copies than wanted, it is mnist@2: no room on n2";
        assert_eq!((found.message.as_str(), found.hint.as_str()), (want, "mesh data show mnist@2"));
        let two = [version(1, Some(2), None), version(2, Some(1), Some("n3 is down"))];
        let found = judge(&two).unwrap();
        assert_eq!(found.message, "2 versions have fewer copies than wanted, such as mnist@1");
    }
}
