//! Saved searches: access, validation, and resolution of names to queries.
//!
//! Has no side effects. The server stores them as objects of the control plane and applies these rules.

use crowsnest_api::storage::SavedSearchSpec;
use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_query::{Limits, parse};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_64;

/// Version of the query language of new searches.
const SYNTAX_VERSION: &str = "v1";
const MAX_PER_OWNER: usize = 200;
const MAX_TITLE_CHARS: usize = 128;
const MAX_DESCRIPTION_CHARS: usize = 1024;

/// User input for a saved search.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SavedSearchDraft {
    pub title: String,
    pub query: String,
    pub description: String,
    pub shared: bool,
}

/// Access of a caller to a saved search; each level includes the previous ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccessLevel {
    /// The caller cannot know that it exists.
    Hidden,
    Read,
    Write,
}

/// Owners may change their searches. Shared ones are visible to everyone and may be changed by cluster
/// administrators.
pub fn access(saved: &SavedSearchSpec, caller: &UserInfo) -> AccessLevel {
    match (saved.owner == caller.name, saved.shared) {
        (true, _) => AccessLevel::Write,
        (false, true) if caller.is_master() => AccessLevel::Write,
        (false, true) => AccessLevel::Read,
        (false, false) => AccessLevel::Hidden,
    }
}

/// True if an owner of this number of searches may save another one.
pub fn can_add(count: usize) -> bool {
    count < MAX_PER_OWNER
}

/// Validates a draft.
pub fn validate(draft: SavedSearchDraft, owner: &str) -> Result<SavedSearchSpec, Vec<FieldError>> {
    let mut errors = Vec::new();
    if draft.title.trim().is_empty() {
        errors.push(FieldError::required("spec.title", "the title of the search"));
    }
    for (field, text, max_chars) in
        [("spec.title", &draft.title, MAX_TITLE_CHARS), ("spec.description", &draft.description, MAX_DESCRIPTION_CHARS)]
    {
        if text.chars().count() > max_chars {
            let detail = format!("may not be more than {max_chars} characters");
            errors.push(FieldError::new(FieldErrorKind::TooLong, field, None, detail));
        }
    }
    if let Err(error) = parse(&draft.query, &Limits::default()) {
        errors.push(FieldError::invalid("spec.query", &draft.query, error.to_string()));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let SavedSearchDraft { title, query, description, shared } = draft;
    Ok(SavedSearchSpec {
        title,
        query,
        description,
        shared,
        owner: owner.to_owned(),
        syntax: SYNTAX_VERSION.to_owned(),
    })
}

/// An object name of letters, digits and hyphens, derived from the title and unique per owner.
pub fn derive_name(title: &str, owner: &str) -> String {
    let mut slug: String =
        title.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    slug.truncate(40);
    let hash = xxh3_64(format!("{owner}\n{title}").as_bytes());
    format!("{}-{hash:016x}", slug.trim_matches('-')).trim_start_matches('-').to_owned()
}

/// The queries that a caller may use with `scope:`, by name and by lower-case title.
pub fn scopes(all: impl IntoIterator<Item = (String, SavedSearchSpec)>, caller: &UserInfo) -> BTreeMap<String, String> {
    let readable = all.into_iter().filter(|(_, saved)| access(saved, caller) >= AccessLevel::Read);
    let mut readable: Vec<(String, SavedSearchSpec)> = readable.collect();
    // Own searches take precedence over shared ones, and names over titles.
    readable.sort_by_key(|(_, saved)| saved.owner == caller.name);
    let mut scopes = BTreeMap::new();
    let mut titles_of_others = BTreeSet::new();
    for (_, saved) in &readable {
        let title = saved.title.to_lowercase();
        if saved.owner != caller.name && !titles_of_others.insert(title.clone()) {
            // An ambiguous title of shared searches is not resolved.
            scopes.remove(&title);
        } else {
            scopes.insert(title, saved.query.clone());
        }
    }
    scopes.extend(readable.into_iter().map(|(name, saved)| (name, saved.query)));
    scopes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::user::MASTERS;
    use rstest::rstest;

    fn new_saved_search(owner: &str, shared: bool) -> SavedSearchSpec {
        let draft = SavedSearchDraft {
            title: "Broken".into(),
            query: "is:unhealthy".into(),
            shared,
            ..SavedSearchDraft::default()
        };
        validate(draft, owner).unwrap()
    }

    #[rstest]
    #[case::own("ann", "staff", false, AccessLevel::Write)]
    #[case::own_and_shared("ann", "staff", true, AccessLevel::Write)]
    #[case::of_another_owner("bob", "staff", false, AccessLevel::Hidden)]
    #[case::shared_by_another_owner("bob", "staff", true, AccessLevel::Read)]
    #[case::of_another_owner_for_an_administrator("root", MASTERS, false, AccessLevel::Hidden)]
    #[case::shared_for_an_administrator("root", MASTERS, true, AccessLevel::Write)]
    #[case::a_group_of_the_owners_name("bob", "ann", false, AccessLevel::Hidden)]
    #[case::anonymous("", "staff", false, AccessLevel::Hidden)]
    fn access_depends_on_owner_and_sharing(
        #[case] caller: &str,
        #[case] group: &str,
        #[case] shared: bool,
        #[case] expected: AccessLevel,
    ) {
        assert_eq!(access(&new_saved_search("ann", shared), &UserInfo::new(caller, [group])), expected);
    }

    #[rstest]
    #[case::all_of_it("Broken", "is:unhealthy", "x", &[])]
    #[case::no_title(" ", "x", "", &["spec.title: Required value: the title of the search"])]
    #[case::long_texts(&"é".repeat(129), "x", &"é".repeat(1025), &["spec.title: Too long: may not be more than 128 characters", "spec.description: Too long"])]
    #[case::query_too_long("x", &"a".repeat(5000), "", &["spec.query: Invalid value"])]
    fn invalid_drafts_are_refused_by_field(
        #[case] title: &str,
        #[case] query: &str,
        #[case] description: &str,
        #[case] expected: &[&str],
    ) {
        let draft = SavedSearchDraft {
            title: title.to_owned(),
            query: query.to_owned(),
            description: description.to_owned(),
            shared: false,
        };
        let errors = validate(draft, "ann").err().unwrap_or_default();
        assert_eq!(errors.len(), expected.len(), "{errors:?}");
        for (error, begins) in errors.iter().zip(expected) {
            assert!(error.to_string().starts_with(begins), "{error}");
        }
    }

    #[test]
    fn names_are_valid_and_differ_by_owner() {
        let (ann, bob) = (derive_name("Broken pods / prod!", "ann"), derive_name("Broken pods / prod!", "bob"));
        assert!(ann.starts_with("broken-pods---prod-") && ann != bob);
        assert!(derive_name("é", "ann").chars().all(|c| c.is_ascii_alphanumeric()));
    }

    #[test]
    fn names_resolve_by_precedence() {
        let saved_search = |name: &str, owner: &str, shared: bool, query: &str| {
            (name.to_owned(), SavedSearchSpec { query: query.to_owned(), ..new_saved_search(owner, shared) })
        };
        let all = [
            saved_search("one", "ann", false, "own"),
            saved_search("two", "bob", true, "shared"),
            saved_search("three", "bob", false, "hidden"),
            saved_search("broken", "cat", true, "by name"),
        ];
        let scopes_of = |caller: &str| {
            let scopes = scopes(all.clone(), &UserInfo::new(caller, ["staff"]));
            ["one", "two", "three", "broken"].map(|name| scopes.get(name).cloned().unwrap_or_default())
        };
        assert_eq!(scopes_of("ann"), ["own", "shared", "", "by name"]);
        assert_eq!(scopes_of("bob"), ["", "shared", "hidden", "by name"]);
        let without = scopes(all[..3].to_vec(), &UserInfo::new("ann", ["staff"]));
        assert_eq!(without.get("broken").map(String::as_str), Some("own"), "an own title has precedence");
        let two = [saved_search("one", "ann", true, "first"), saved_search("two", "bob", true, "second")];
        let ambiguous = scopes(two.to_vec(), &UserInfo::new("cat", ["staff"]));
        assert_eq!(ambiguous.get("broken"), None, "ambiguous titles are not resolved");
        assert_eq!(ambiguous.get("one").map(String::as_str), Some("first"));
    }

    #[test]
    fn the_number_of_searches_per_owner_is_limited() {
        assert!(can_add(0) && can_add(MAX_PER_OWNER - 1) && !can_add(MAX_PER_OWNER));
    }
}
