//! Fields and states of bindings, works and quotas. They also apply to the subjects of these objects: templates,
//! and the objects created in members.

use crate::document::columns::Keyword;
use crate::plan::kinds::objects_of_kinds;
use crate::plan::patterns::{literal_word, pattern_test};
use crate::plan::predicate::Match;
use crate::plan::relations::Relation;
use crowsnest_api::propagation::{BINDINGS, LIMITED_BINDINGS, QUOTAS};
use crowsnest_query::{Pattern, Value};

/// Bindings and works with a value, and their subjects.
pub fn propagation_match(keyword: Keyword, pattern: &Pattern) -> Match {
    let (keyword_match, condition) =
        (Match::Keyword(keyword, pattern_test(pattern, false)), format!("{}:{pattern}", keyword.name()));
    match keyword {
        // Works are as numerous as the objects they create, which are in the named cluster; `cluster:` finds these
        // at lower cost.
        Keyword::On => {
            let bindings = keyword_match.clone().and(objects_of_kinds(BINDINGS));
            Match::Or(vec![keyword_match, subjects(bindings, condition)])
        }
        _ => with_subjects(keyword_match, condition),
    }
}

/// Objects that match, and their subjects.
pub fn with_subjects(matches: Match, condition: String) -> Match {
    Match::Or(vec![matches.clone(), subjects(matches, condition)])
}

fn subjects(matches: Match, condition: String) -> Match {
    Match::Relation(Box::new(Relation::Subjects { inner: matches, condition }))
}

/// `override:` and `quota:`, with any value or a specific one; None for other fields and values.
pub fn override_or_quota_match(field: &str, exact: bool, value: &Value) -> Option<Match> {
    let condition = format!("{field}:{value}");
    let pattern = match value {
        Value::Exists => None,
        Value::Pattern(pattern) => Some(pattern),
        _ => return None,
    };
    match field {
        "override" => {
            let override_match = match (pattern, pattern.and_then(literal_word)) {
                (None, _) => Match::has(Keyword::Override.name()),
                (_, Some(text)) if exact => Match::Exact(Keyword::Override, text.to_owned()),
                (Some(pattern), _) => Match::Keyword(Keyword::Override, pattern_test(pattern, false)),
            };
            Some(with_subjects(override_match, condition))
        }
        "quota" => Some(quota_match(pattern, condition)),
        _ => None,
    }
}

/// Objects limited by federated quotas: the bindings of their namespaces, with their templates, and the quotas
/// created in members.
fn quota_match(pattern: Option<&Pattern>, condition: String) -> Match {
    let name = pattern.map(|pattern| {
        let column = if pattern.to_string().contains('/') { Keyword::Qualified } else { Keyword::Name };
        Match::Keyword(column, pattern_test(pattern, false))
    });
    let quotas = Match::And([objects_of_kinds(QUOTAS)].into_iter().chain(name).collect());
    let limited = subjects(quotas, condition.clone());
    let bindings = Match::And(vec![objects_of_kinds(LIMITED_BINDINGS), limited.clone()]);
    Match::Or(vec![limited, subjects(bindings, condition)])
}
