//! Our annotations of Clusters that take certain values only. A value nobody knows would be taken for one that its writer did
//! not mean: it is refused when it comes. One that was there before is taken for the safest there is, and told of.

use std::collections::BTreeMap;

use crowsnest_api::constants::annotation::{
    ANSWER_WITHIN, CONFIRMED_DOWN, EXEC, EXEC_DISABLED, EXEC_ENABLED, IMPERSONATES, IMPERSONATES_WHOLE,
    REACHED_THROUGH, REACHED_THROUGH_AGENT,
};
use crowsnest_apimachinery::field::FieldError;

type Annotations = BTreeMap<String, String>;

/// An annotation whose value nobody knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    key: &'static str,
    value: String,
    error: FieldError,
    /// What it is taken for.
    means: &'static str,
}

impl Misfit {
    /// What whoever looks at the Cluster should know.
    pub fn warning(&self) -> String {
        let Self { key, value, means, .. } = self;
        format!("metadata.annotations[{key}]: {value:?} is not known: {means}")
    }
}

/// Those of a Cluster.
pub fn misfits(annotations: Option<&Annotations>) -> Vec<Misfit> {
    let Some(annotations) = annotations else { return Vec::new() };
    let choices: [(&'static str, &[&str], &'static str); 4] = [
        (CONFIRMED_DOWN, &["true", "false"], "its readiness is doubted as that of any other"),
        (EXEC, &[EXEC_DISABLED, EXEC_ENABLED], "nobody reaches into its pods, as if it was \"disabled\""),
        (IMPERSONATES, &[IMPERSONATES_WHOLE], "its API server is told users and groups, but neither UID nor extra"),
        (REACHED_THROUGH, &[REACHED_THROUGH_AGENT], "in pull mode nobody dials it, as if it was \"agent\""),
    ];
    let path = |key: &str| format!("metadata.annotations[{key}]");
    let mut found: Vec<Misfit> = choices
        .into_iter()
        .filter_map(|(key, known, means)| {
            let value = annotations.get(key).filter(|value| !known.contains(&value.as_str()))?;
            Some(Misfit { key, value: value.clone(), error: FieldError::not_supported(path(key), value, known), means })
        })
        .collect();
    if let Some(value) = annotations.get(ANSWER_WITHIN).filter(|value| !is_seconds(value)) {
        let error = FieldError::invalid(path(ANSWER_WITHIN), value, "must be a number of seconds greater than 0");
        let means = "its answers may take the usual time to begin";
        found.push(Misfit { key: ANSWER_WITHIN, value: value.clone(), error, means });
    }
    found
}

fn is_seconds(value: &str) -> bool {
    value.parse().is_ok_and(|seconds: u64| seconds > 0)
}

/// What is refused of a Cluster that is written, and what is only told since it was there before.
pub fn admit(now: Option<&Annotations>, before: Option<&Annotations>) -> (Vec<FieldError>, Vec<String>) {
    let was = |misfit: &Misfit| before.and_then(|before| before.get(misfit.key)) == Some(&misfit.value);
    let (old, new): (Vec<_>, Vec<_>) = misfits(now).into_iter().partition(was);
    (new.into_iter().map(|misfit| misfit.error).collect(), old.iter().map(Misfit::warning).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn annotations(given: &[(&str, &str)]) -> Annotations {
        given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[rstest]
    #[case(EXEC, "disabled", None)]
    #[case(EXEC, "enabled", None)]
    #[case(EXEC, "Disabled", Some("Unsupported value: \"Disabled\": supported values: \"disabled\", \"enabled\""))]
    #[case(EXEC, "", Some("Unsupported value: \"\": supported values: \"disabled\", \"enabled\""))]
    #[case(IMPERSONATES, "whole", None)]
    #[case(IMPERSONATES, "all", Some("Unsupported value: \"all\": supported values: \"whole\""))]
    #[case(REACHED_THROUGH, "agent", None)]
    #[case(REACHED_THROUGH, "pigeon", Some("Unsupported value: \"pigeon\": supported values: \"agent\""))]
    #[case(CONFIRMED_DOWN, "true", None)]
    #[case(CONFIRMED_DOWN, "yes", Some("Unsupported value: \"yes\": supported values: \"true\", \"false\""))]
    #[case(ANSWER_WITHIN, "5", None)]
    #[case(ANSWER_WITHIN, "0", Some("Invalid value: \"0\": must be a number of seconds greater than 0"))]
    #[case(ANSWER_WITHIN, "5s", Some("Invalid value: \"5s\": must be a number of seconds greater than 0"))]
    #[case("example.com/any", "thing", None)]
    fn values_nobody_knows_are_refused_when_they_come(
        #[case] key: &str,
        #[case] value: &str,
        #[case] expected: Option<&str>,
    ) {
        let now = annotations(&[(key, value)]);
        let refused: Vec<String> = expected.iter().map(|why| format!("metadata.annotations[{key}]: {why}")).collect();
        for before in [None, Some(&annotations(&[(key, "other")]))] {
            let (errors, warnings) = admit(Some(&now), before);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), refused);
            assert!(warnings.is_empty());
        }
        // What was there before is no reason to refuse something else.
        let (errors, warnings) = admit(Some(&now), Some(&now));
        assert!(errors.is_empty());
        assert_eq!(warnings.len(), refused.len());
        assert!(warnings.iter().all(|warning| warning.contains(key) && warning.contains(&format!("{value:?}"))));
    }
}
