//! Label selectors as lists of requirements, all of which have to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::field::FieldError;
use crate::names::format;
use crate::selector::SelectorError;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// How a label is compared.
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
    /// The operator in the string form.
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

/// A test of one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: BTreeSet<String>,
}

impl Requirement {
    /// Checks key, values and their number.
    pub fn new(key: &str, operator: Operator, values: BTreeSet<String>) -> Result<Self, SelectorError> {
        let mut errors = Vec::new();
        if let problems @ [_, ..] = format::qualified_name(key).as_slice() {
            errors.push(FieldError::invalid("key", key, problems.join("; ")));
        }
        let all: Vec<&String> = values.iter().collect();
        let mut number = |wrong: bool, detail: &str| {
            if wrong {
                errors.push(FieldError::invalid("values", &all, detail));
            }
        };
        match operator {
            Operator::In | Operator::NotIn => {
                number(values.is_empty(), "for 'in', 'notin' operators, values set can't be empty");
            }
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals => {
                number(values.len() != 1, "exact-match compatibility requires one single value");
            }
            Operator::Exists | Operator::DoesNotExist => {
                number(!values.is_empty(), "values set must be empty for exists and does not exist");
            }
            Operator::GreaterThan | Operator::LessThan => {
                number(values.len() != 1, "for 'Gt', 'Lt' operators, exactly one value is required");
                for (index, value) in values.iter().enumerate().filter(|(_, value)| value.parse::<i64>().is_err()) {
                    let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                    errors.push(FieldError::invalid(format!("values[{index}]"), value, detail));
                }
            }
        }
        for (index, value) in values.iter().enumerate() {
            if let problems @ [_, ..] = format::label_value(value).as_slice() {
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

    /// Whether a label, or its absence, passes.
    pub fn matches(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.contains(value);
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => value.is_some_and(listed),
            Operator::NotIn | Operator::NotEquals => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => self.compares(value, |value, bound| value > bound),
            Operator::LessThan => self.compares(value, |value, bound| value < bound),
        }
    }

    fn compares(&self, value: Option<&str>, compare: impl Fn(i64, i64) -> bool) -> bool {
        let value = value.and_then(|value| value.parse().ok());
        let bound = self.values.first().and_then(|bound| bound.parse().ok());
        value.zip(bound).is_some_and(|(value, bound)| compare(value, bound))
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

/// Requirements on labels, all of which have to hold. Without requirements everything matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

impl Selector {
    /// From requirements, which are put in the order of their keys.
    pub fn new(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|left, right| left.key.cmp(&right.key));
        Self { requirements }
    }

    /// From the string form: `app=web,tier in (front, back),!canary`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        crate::selector::parse::requirements(text).map(Self::new)
    }

    /// From the form used in objects. An empty one matches everything.
    pub fn from_label_selector(selector: &LabelSelector) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            requirements.push(Requirement::new(key, Operator::In, BTreeSet::from([value.clone()]))?);
        }
        for expression in selector.match_expressions.iter().flatten() {
            let operator = match expression.operator.as_str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return Err(SelectorError::Operator(other.to_owned())),
            };
            let values = expression.values.iter().flatten().cloned().collect();
            requirements.push(Requirement::new(&expression.key, operator, values)?);
        }
        Ok(Self::new(requirements))
    }

    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether everything matches.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_with(|key| labels.get(key).map(String::as_str))
    }

    /// Matches labels kept in some other form, looked up by key.
    pub fn matches_with<'v>(&self, lookup: impl Fn(&str) -> Option<&'v str>) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(lookup(&requirement.key)))
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
    #[case("app>3", false)]
    #[case("in", false)]
    fn string_form(#[case] text: &str, #[case] expected: bool) {
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
    fn object_form(#[case] text: &str, #[case] expected: bool) {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        let selector = Selector::from_label_selector(&serde_saphyr::from_str(text).unwrap()).unwrap();
        assert_eq!(selector.matches(&labels), expected, "{text}");
    }
}
