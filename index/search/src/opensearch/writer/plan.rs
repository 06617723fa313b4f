//! Decides from the indices behind the aliases which index is written to. Has no side effects.
//!
//! The alias that searches use points at one index. A second alias, `NAME-rebuild`, points at an index that is being
//! filled and takes the first one's place when it has caught up. The mapping of each records its origin.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Template and source of an index, kept in the `_meta` of its mapping. Another origin needs another index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    /// Digest of settings and mappings.
    pub template: String,
    /// [`super::ChangeSource::identity`].
    pub source: String,
}

/// Index behind an alias.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AliasTarget {
    None,
    /// An index that Crowsnest created.
    Usable {
        index: String,
        origin: Origin,
    },
    Unusable(AliasError),
}

/// An alias that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AliasError {
    #[error("{0} is an index, not an alias")]
    Index(String),
    #[error("the alias {alias} points at {count} indices")]
    Several { alias: String, count: usize },
    #[error("the alias {alias} points at {index}, which Crowsnest did not create")]
    NotManaged { alias: String, index: String },
}

/// Next step towards an index that can be written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Create an index behind the alias.
    Create,
    /// Create an index behind the rebuild alias.
    CreateRebuild,
    /// Delete an index of an outdated rebuild.
    Discard { index: String },
    /// Point the alias to the index of the rebuild immediately, because the alias has no index.
    Promote { index: String },
    /// Write to the index behind the alias.
    Follow { index: String },
    /// Fill the index behind the rebuild alias.
    Rebuild { index: String, old: String },
}

/// Decides the next step from the indices behind the alias (`live`) and the rebuild alias. An index of another origin
/// than `required` has to be rebuilt.
pub(super) fn decide(live: AliasTarget, rebuild: AliasTarget, required: &Origin) -> Result<Step, AliasError> {
    match (live, rebuild) {
        (AliasTarget::Unusable(error), _) | (_, AliasTarget::Unusable(error)) => Err(error),
        (_, AliasTarget::Usable { index, origin }) if origin != *required => Ok(Step::Discard { index }),
        (AliasTarget::None, AliasTarget::Usable { index, .. }) => Ok(Step::Promote { index }),
        (AliasTarget::None, AliasTarget::None) => Ok(Step::Create),
        (AliasTarget::Usable { index: old, .. }, AliasTarget::Usable { index, .. }) => Ok(Step::Rebuild { index, old }),
        (AliasTarget::Usable { index, origin }, AliasTarget::None) if origin == *required => Ok(Step::Follow { index }),
        (AliasTarget::Usable { .. }, AliasTarget::None) => Ok(Step::CreateRebuild),
    }
}

pub(super) fn rebuild_alias(alias: &str) -> String {
    format!("{alias}-rebuild")
}

/// Name of the next index: one number above those that exist. Two writers choose the same name, so one of them creates it.
pub(super) fn next_index(alias: &str, existing: &[String]) -> String {
    let numbers = existing.iter().filter_map(|name| name.strip_prefix(alias)?.strip_prefix('-')?.parse::<u64>().ok());
    format!("{alias}-{:06}", numbers.max().unwrap_or(0).saturating_add(1))
}

/// Body that creates an index: the template with the settings that the writer relies on.
///
/// `translog.durability: request`: what is acknowledged survives a crash. `gc_deletes`: an older version that arrives within
/// this time after a deletion is refused. `refresh_interval`: without an explicit one, shards that are not searched are not refreshed.
pub(super) fn index_body(template: &Value, alias: &str, origin: &Origin) -> Value {
    let mut body = template.as_object().cloned().unwrap_or_default();
    let settings = entry(&mut body, "settings");
    for (key, value) in
        [("index.translog.durability", "request"), ("index.gc_deletes", "1h"), ("index.refresh_interval", "1s")]
    {
        settings.insert(key.to_owned(), value.into());
    }
    entry(entry(&mut body, "mappings"), "_meta").insert("crowsnest".to_owned(), json!(origin));
    body.insert("aliases".to_owned(), json!({ alias: {} }));
    Value::Object(body)
}

fn entry<'a>(object: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let value = object.entry(key).or_insert_with(|| json!({}));
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(inner) => inner,
        _ => unreachable!("made an object above"),
    }
}

/// Reads the response to `GET /ALIAS/_mapping`, in which each index of the alias has a key.
pub(super) fn resolve_alias(alias: &str, mappings: &BTreeMap<String, IndexMapping>) -> AliasTarget {
    match mappings.iter().next() {
        None => AliasTarget::None,
        Some(_) if mappings.len() > 1 => {
            AliasTarget::Unusable(AliasError::Several { alias: alias.to_owned(), count: mappings.len() })
        }
        Some((index, _)) if index == alias => AliasTarget::Unusable(AliasError::Index(alias.to_owned())),
        Some((index, IndexMapping { mappings: Mapping { meta: Some(Meta { crowsnest: Some(origin) }) } })) => {
            AliasTarget::Usable { index: index.clone(), origin: origin.clone() }
        }
        Some((index, _)) => {
            AliasTarget::Unusable(AliasError::NotManaged { alias: alias.to_owned(), index: index.clone() })
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct IndexMapping {
    #[serde(default)]
    mappings: Mapping,
}

#[derive(Debug, Default, Deserialize)]
struct Mapping {
    #[serde(rename = "_meta")]
    meta: Option<Meta>,
}

#[derive(Debug, Deserialize)]
struct Meta {
    crowsnest: Option<Origin>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn origin(template: &str) -> Origin {
        Origin { template: template.to_owned(), source: "store".to_owned() }
    }

    fn usable(index: &str, template: &str) -> AliasTarget {
        AliasTarget::Usable { index: index.to_owned(), origin: origin(template) }
    }

    #[rstest]
    #[case::nothing(AliasTarget::None, AliasTarget::None, Step::Create)]
    #[case::live(usable("a-1", "new"), AliasTarget::None, Step::Follow { index: "a-1".to_owned() })]
    #[case::outdated(usable("a-1", "old"), AliasTarget::None, Step::CreateRebuild)]
    #[case::rebuild(
        usable("a-1", "old"),
        usable("a-2", "new"),
        Step::Rebuild { index: "a-2".to_owned(), old: "a-1".to_owned() }
    )]
    #[case::rebuild_of_the_same(
        usable("a-1", "new"),
        usable("a-2", "new"),
        Step::Rebuild { index: "a-2".to_owned(), old: "a-1".to_owned() }
    )]
    #[case::outdated_rebuild(usable("a-1", "new"), usable("a-2", "old"), Step::Discard { index: "a-2".to_owned() })]
    #[case::live_lost(AliasTarget::None, usable("a-2", "new"), Step::Promote { index: "a-2".to_owned() })]
    fn next_steps_are_decided(#[case] live: AliasTarget, #[case] rebuild: AliasTarget, #[case] step: Step) {
        assert_eq!(decide(live, rebuild, &origin("new")), Ok(step));
    }

    #[rstest]
    #[case::nothing("{}", Ok(AliasTarget::None))]
    #[case::usable(
        r#"{"a-000001":{"mappings":{"_meta":{"crowsnest":{"template":"new","source":"store"}},"dynamic":"false"}}}"#,
        Ok(usable("a-000001", "new"))
    )]
    #[case::index(r#"{"a":{"mappings":{}}}"#, Err("a is an index, not an alias"))]
    #[case::several(r#"{"x":{"mappings":{}},"y":{"mappings":{}}}"#, Err("the alias a points at 2 indices"))]
    #[case::foreign(
        r#"{"x":{"mappings":{"_meta":{"x":1}}}}"#,
        Err("the alias a points at x, which Crowsnest did not create")
    )]
    fn aliases_are_resolved(#[case] response: &str, #[case] expected: Result<AliasTarget, &str>) {
        let read = resolve_alias("a", &serde_json::from_str(response).unwrap());
        let read = match read {
            AliasTarget::Unusable(error) => Err(error.to_string()),
            other => Ok(other),
        };
        assert_eq!(read, expected.map_err(ToOwned::to_owned));
    }

    #[test]
    fn names_count_up() {
        let names = ["a-000002", "a-000010", "a-x", "ab-000099"].map(ToOwned::to_owned);
        assert_eq!(next_index("a", &names), "a-000011");
        assert_eq!(next_index("a", &[]), "a-000001");
    }

    #[test]
    fn the_template_contains_required_settings() {
        let template =
            json!({"settings": {"number_of_replicas": 0}, "mappings": {"dynamic": false, "_meta": {"x": 1}}});
        let body = index_body(&template, "a", &origin("t"));
        insta::assert_yaml_snapshot!(body, @r"
        aliases:
          a: {}
        mappings:
          _meta:
            crowsnest:
              source: store
              template: t
            x: 1
          dynamic: false
        settings:
          index.gc_deletes: 1h
          index.refresh_interval: 1s
          index.translog.durability: request
          number_of_replicas: 0
        ");
    }
}
