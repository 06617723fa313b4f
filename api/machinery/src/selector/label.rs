//! Label selectors as lists of requirements, all of which must be satisfied.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::field::FieldError;
use crate::names::format;
use crate::selector::SelectorError;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
use serde_json::Value;

/// Operator of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    In,
    NotIn,
    Equals,
    DoubleEquals,
    NotEquals,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

impl Operator {
    /// Parses the operator of an expression of a node selector.
    fn parse_in_node_selector(name: &str) -> Option<Self> {
        Some(match name {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            "Gt" => Self::GreaterThan,
            "Lt" => Self::LessThan,
            _ => return None,
        })
    }

    /// Parses the operator of an expression of a `LabelSelector`, which has no `Gt` and `Lt`.
    fn parse_in_label_selector(name: &str) -> Option<Self> {
        Self::parse_in_node_selector(name).filter(|operator| !matches!(operator, Self::GreaterThan | Self::LessThan))
    }

    /// True if a label with `value`, or its absence, satisfies the operator. `has_value` is true for the values of the
    /// requirement; `bound` is the first of them, with which `GreaterThan` and `LessThan` compare.
    fn matches(self, value: Option<&str>, has_value: impl Fn(&str) -> bool, bound: Option<&str>) -> bool {
        let compares = |compare: fn(i64, i64) -> bool| {
            let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
            number(value).zip(number(bound)).is_some_and(|(value, bound)| compare(value, bound))
        };
        match self {
            Self::In | Self::Equals | Self::DoubleEquals => value.is_some_and(has_value),
            Self::NotIn | Self::NotEquals => !value.is_some_and(has_value),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
            Self::GreaterThan => compares(|value, bound| value > bound),
            Self::LessThan => compares(|value, bound| value < bound),
        }
    }

    /// Name of the operator, as in k8s.io/apimachinery/pkg/selection.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::NotIn => "notin",
            Self::Equals => "=",
            Self::DoubleEquals => "==",
            Self::NotEquals => "!=",
            Self::Exists => "exists",
            Self::DoesNotExist => "!",
            Self::GreaterThan => "gt",
            Self::LessThan => "lt",
        }
    }
}

/// A requirement on a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: BTreeSet<String>,
}

impl Requirement {
    /// Validates the key, the values and their number.
    pub fn new(key: &str, operator: Operator, values: BTreeSet<String>) -> Result<Self, SelectorError> {
        let mut errors = Vec::new();
        if let problems @ [_, ..] = format::validate_qualified_name(key).as_slice() {
            errors.push(FieldError::invalid("key", key, problems.join("; ")));
        }
        let all: Vec<&String> = values.iter().collect();
        let mut check_count = |is_valid: bool, detail: &str| {
            if !is_valid {
                errors.push(FieldError::invalid("values", &all, detail));
            }
        };
        match operator {
            Operator::In | Operator::NotIn => {
                check_count(!values.is_empty(), "for 'in', 'notin' operators, values set can't be empty");
            }
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals => {
                check_count(values.len() == 1, "exact-match compatibility requires one single value");
            }
            Operator::Exists | Operator::DoesNotExist => {
                check_count(values.is_empty(), "values set must be empty for exists and does not exist");
            }
            Operator::GreaterThan | Operator::LessThan => {
                check_count(values.len() == 1, "for 'Gt', 'Lt' operators, exactly one value is required");
                for (index, value) in values.iter().enumerate().filter(|(_, value)| value.parse::<i64>().is_err()) {
                    let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                    errors.push(FieldError::invalid(format!("values[{index}]"), value, detail));
                }
            }
        }
        for (index, value) in values.iter().enumerate() {
            if let problems @ [_, ..] = format::validate_label_value(value).as_slice() {
                errors.push(FieldError::invalid(format!("values[{index}][{key}]"), value, problems.join("; ")));
            }
        }
        if errors.is_empty() {
            Ok(Self { key: key.to_owned(), operator, values })
        } else {
            Err(SelectorError::Invalid(errors))
        }
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn operator(&self) -> Operator {
        self.operator
    }

    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(String::as_str)
    }

    /// True if a label with this value, or its absence, satisfies the requirement.
    pub fn matches(&self, value: Option<&str>) -> bool {
        self.operator.matches(value, |value| self.values.contains(value), self.values.first().map(String::as_str))
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = || self.values().collect::<Vec<_>>().join(",");
        match self.operator {
            Operator::Exists => formatter.write_str(&self.key),
            Operator::DoesNotExist => write!(formatter, "!{}", self.key),
            Operator::In | Operator::NotIn => write!(formatter, "{} {} ({})", self.key, self.operator.as_str(), list()),
            Operator::GreaterThan => write!(formatter, "{}>{}", self.key, list()),
            Operator::LessThan => write!(formatter, "{}<{}", self.key, list()),
            operator => write!(formatter, "{}{}{}", self.key, operator.as_str(), list()),
        }
    }
}

/// True if a value, or its absence, satisfies an expression of a node selector or of a policy's field selector. An
/// unknown operator or a number of values that the operator does not allow matches nothing.
pub fn expression_matches(operator: &str, value: Option<&str>, values: &[String]) -> bool {
    Operator::parse_in_node_selector(operator).is_some_and(|operator| {
        let is_valid = match operator {
            Operator::Exists | Operator::DoesNotExist => values.is_empty(),
            Operator::GreaterThan | Operator::LessThan => values.len() == 1,
            _ => !values.is_empty(),
        };
        let has_value = |value: &str| values.iter().any(|candidate| candidate == value);
        is_valid && operator.matches(value, has_value, values.first().map(String::as_str))
    })
}

/// True if labels satisfy a `LabelSelector`, which is not converted to a [`Selector`]. An invalid expression matches
/// nothing.
pub fn label_selector_matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let has_labels = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    has_labels
        && selector.match_expressions.iter().flatten().all(|expression| {
            let value = labels.get(&expression.key).map(String::as_str);
            Operator::parse_in_label_selector(&expression.operator).is_some()
                && expression_matches(&expression.operator, value, expression.values.as_deref().unwrap_or_default())
        })
}

/// Requirements on labels, all of which must be satisfied. Without requirements everything matches, except for
/// [`Selector::nothing`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    requirements: Vec<Requirement>,
    matches_nothing: bool,
}

impl Selector {
    /// Creates a selector from requirements, and sorts them by key.
    pub fn new(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|left, right| left.key.cmp(&right.key));
        Self { requirements, matches_nothing: false }
    }

    /// Creates a selector that matches nothing. Its string form is empty, as in apimachinery.
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), matches_nothing: true }
    }

    /// Creates a selector that requires all of the labels, without validating them (`Service.spec.selector`).
    pub fn from_labels<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        let requirement = |(key, value): (&String, &String)| Requirement {
            key: key.clone(),
            operator: Operator::Equals,
            values: BTreeSet::from([value.clone()]),
        };
        Self::new(labels.into_iter().map(requirement).collect())
    }

    /// Parses the string form: `app=web,tier in (front, back),!canary`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        crate::selector::parse::parse_requirements(text).map(Self::new)
    }

    /// Converts a `LabelSelector`; an invalid one matches nothing.
    pub fn from_label_selector_or_nothing(selector: &LabelSelector) -> Self {
        Self::from_label_selector(selector).unwrap_or_else(|_| Self::nothing())
    }

    /// Converts a `LabelSelector` in JSON. An absent one matches nothing, an empty one everything.
    pub fn from_json(selector: Option<&Value>) -> Result<Self, SelectorError> {
        match selector {
            None | Some(Value::Null) => Ok(Self::nothing()),
            Some(selector) => {
                let typed = LabelSelector::deserialize(selector);
                Self::from_label_selector(&typed.map_err(|error| SelectorError::Syntax(error.to_string()))?)
            }
        }
    }

    /// Converts a `LabelSelector`. An empty one matches everything.
    pub fn from_label_selector(selector: &LabelSelector) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            requirements.push(Requirement::new(key, Operator::Equals, BTreeSet::from([value.clone()]))?);
        }
        for expression in selector.match_expressions.iter().flatten() {
            let operator = Operator::parse_in_label_selector(&expression.operator)
                .ok_or_else(|| SelectorError::Operator(expression.operator.clone()))?;
            let values = expression.values.iter().flatten().cloned().collect();
            requirements.push(Requirement::new(&expression.key, operator, values)?);
        }
        Ok(Self::new(requirements))
    }

    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// True if the selector matches everything.
    pub fn is_empty(&self) -> bool {
        !self.matches_nothing && self.requirements.is_empty()
    }

    /// True for [`Selector::nothing`].
    pub fn matches_nothing(&self) -> bool {
        self.matches_nothing
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_with(|key| labels.get(key).map(String::as_str))
    }

    /// Matches the `metadata.labels` of an untyped object.
    pub fn matches_json(&self, labels: Option<&Value>) -> bool {
        self.matches_with(|key| labels?.get(key)?.as_str())
    }

    /// Matches labels in any representation; `lookup` returns the value of a key.
    pub fn matches_with<'v>(&self, lookup: impl Fn(&str) -> Option<&'v str>) -> bool {
        !self.matches_nothing
            && self.requirements.iter().all(|requirement| requirement.matches(lookup(&requirement.key)))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                formatter.write_str(",")?;
            }
            requirement.fmt(formatter)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("", true)]
    #[case("app", true)]
    #[case("!app", false)]
    #[case("app=web", true)]
    #[case("app == web , size>4", true)]
    #[case("app!=web", false)]
    #[case("other!=web", true)]
    #[case("other notin (a,b)", true)]
    #[case("app in (web, api),size<4", false)]
    #[case("app in (web,)", true)]
    #[case("empty=", true)]
    #[case("empty in (,a)", true)]
    #[case("empty in ()", true)]
    #[case("app in ()", false)]
    #[case("app in (web,,api)", true)]
    #[case("app>3", false)]
    #[case("in", false)]
    fn the_string_form_is_parsed_and_printed(#[case] text: &str, #[case] expected: bool) {
        let labels: BTreeMap<String, String> =
            [("app", "web"), ("size", "5"), ("empty", "")].map(|(key, value)| (key.into(), value.into())).into();
        let selector = Selector::parse(text).unwrap();
        assert_eq!(selector.matches(&labels), expected, "{text}");
        assert_eq!(Selector::parse(&selector.to_string()).unwrap(), selector, "{text}");
    }

    #[test]
    fn refusals_are_worded_like_kubernetes() {
        let refusals: Vec<_> =
            ["a,", "a=b=c", "a in", "a in (", "a in b", "=a", "a b", "-a=b", "a=b!", "a>x", "a in ()", "a,,b", "!!a"]
                .into_iter()
                .map(|text| {
                    (text, Selector::parse(text).map(|s| s.to_string()).unwrap_or_else(|error| error.to_string()))
                })
                .collect();
        insta::assert_yaml_snapshot!(refusals);
    }

    #[rstest]
    #[case("{}", true)]
    #[case("{matchLabels: {app: web}}", true)]
    #[case("{matchLabels: {app: api}}", false)]
    #[case("{matchExpressions: [{key: app, operator: In, values: [web, api]}]}", true)]
    #[case("{matchExpressions: [{key: tier, operator: NotIn, values: [a]}]}", true)]
    #[case("{matchExpressions: [{key: tier, operator: Exists}]}", false)]
    #[case("{matchExpressions: [{key: app, operator: DoesNotExist}]}", false)]
    #[case("{matchExpressions: [{key: app, operator: Gt, values: ['1']}]}", false)]
    #[case("{matchExpressions: [{key: tier, operator: NotIn}]}", false)]
    #[case("{matchExpressions: [{key: app, operator: Exists, values: [web]}]}", false)]
    fn a_label_selector_is_converted_and_matched(#[case] text: &str, #[case] expected: bool) {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        let object: LabelSelector = serde_saphyr::from_str(text).unwrap();
        assert_eq!(Selector::from_label_selector_or_nothing(&object).matches(&labels), expected, "{text}");
        assert_eq!(label_selector_matches(&object, &labels), expected, "{text}");
        let untyped = Selector::from_json(Some(&serde_json::to_value(&object).unwrap()));
        let labels = serde_json::to_value(&labels).unwrap();
        assert_eq!(untyped.unwrap_or_else(|_| Selector::nothing()).matches_json(Some(&labels)), expected, "{text}");
    }

    #[rstest]
    #[case("Gt", Some("5"), &["4"], true)]
    #[case("Gt", Some("4"), &["4"], false)]
    #[case("Lt", Some("x"), &["4"], false)]
    #[case("Lt", Some("3"), &["4", "5"], false)]
    #[case("In", Some("a name longer than labels may be"), &["a name longer than labels may be"], true)]
    #[case("Near", Some("3"), &["3"], false)]
    fn node_selector_expressions_are_matched(
        #[case] operator: &str,
        #[case] value: Option<&str>,
        #[case] values: &[&str],
        #[case] expected: bool,
    ) {
        let values: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
        assert_eq!(expression_matches(operator, value, &values), expected);
    }

    #[test]
    fn an_absent_selector_matches_nothing_and_an_empty_one_everything() {
        assert!(!Selector::from_json(None).unwrap().matches_json(None));
        assert!(Selector::from_json(Some(&serde_json::json!({}))).unwrap().matches_json(None));
        assert!(!Selector::nothing().is_empty());
    }

    #[test]
    fn required_labels_are_printed_with_an_equals_sign() {
        let labels = BTreeMap::from([("b".to_owned(), "2".to_owned()), ("a".to_owned(), "1".to_owned())]);
        let object = LabelSelector { match_labels: Some(labels.clone()), ..LabelSelector::default() };
        assert_eq!(Selector::from_label_selector(&object).unwrap().to_string(), "a=1,b=2");
        assert_eq!(Selector::from_labels(&labels).to_string(), "a=1,b=2");
    }
}
