//! Label selectors, compiled once and matched against many objects.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// One requirement on a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
    /// Both sides are integers.
    Greater(String, i64),
    Less(String, i64),
    /// A malformed requirement matches nothing.
    Nothing,
}

impl Requirement {
    /// Reads one expression of a label selector or node selector term.
    pub fn new(key: &str, operator: &str, values: Option<&[String]>) -> Self {
        let values = values.unwrap_or_default();
        let number = || values.first().and_then(|value| value.parse().ok());
        match operator {
            "In" => Self::In(key.into(), values.to_vec()),
            "NotIn" => Self::NotIn(key.into(), values.to_vec()),
            "Exists" => Self::Exists(key.into()),
            "DoesNotExist" => Self::DoesNotExist(key.into()),
            "Gt" => number().map_or(Self::Nothing, |bound| Self::Greater(key.into(), bound)),
            "Lt" => number().map_or(Self::Nothing, |bound| Self::Less(key.into(), bound)),
            _ => Self::Nothing,
        }
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        let number = |key: &String| labels.get(key).and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Self::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Self::Exists(key) => labels.contains_key(key),
            Self::DoesNotExist(key) => !labels.contains_key(key),
            Self::Greater(key, bound) => number(key).is_some_and(|value| value > *bound),
            Self::Less(key, bound) => number(key).is_some_and(|value| value < *bound),
            Self::Nothing => false,
        }
    }
}

/// A compiled label selector. The empty selector matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

impl Selector {
    pub fn new(selector: &LabelSelector) -> Self {
        let mut requirements = Self::from_map(selector.match_labels.iter().flatten()).0;
        for expression in selector.match_expressions.iter().flatten() {
            requirements.push(Requirement::new(&expression.key, &expression.operator, expression.values.as_deref()));
        }
        Self(requirements)
    }

    /// Equality on every entry, as in `Service.spec.selector`.
    pub fn from_map<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        Self(labels.into_iter().map(|(key, value)| Requirement::In(key.clone(), vec![value.clone()])).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.matches(labels))
    }
}
