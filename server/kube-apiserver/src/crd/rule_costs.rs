//! Estimated cost of a schema's CEL rules, compared with kube-apiserver's limits. Has no side effects.

use crowsnest_apimachinery::field::FieldError;

/// Cost limit per expression, in kube-apiserver's units.
const MAX_EXPRESSION_COST: u64 = 10_000_000;
/// Cost limit for all expressions of a schema.
const MAX_SCHEMA_COST: u64 = 100_000_000;
/// Minimum cost of a rule that is reported when the total exceeds its limit.
const MIN_REPORTED_COST: u64 = MAX_SCHEMA_COST / 100;
/// Maximum number of rules that are reported when the total exceeds its limit.
const MAX_REPORTED_RULES: usize = 4;

/// Estimated costs of a schema's rules.
#[derive(Debug)]
pub(super) struct RuleCosts {
    total: u64,
    /// Paths of the most expensive rules, with their costs.
    most_expensive: Vec<(String, u64)>,
    /// True if the schema is stored already: the limit per expression does not apply.
    is_stored: bool,
}

impl RuleCosts {
    pub fn new(is_stored: bool) -> Self {
        Self { total: 0, most_expensive: Vec::new(), is_stored }
    }

    /// Adds the cost of the expression at `path`; returns an error that begins with `subject` if it exceeds its limit.
    pub fn add(&mut self, subject: &str, path: String, cost: u64) -> Option<FieldError> {
        let error = (!self.is_stored && cost > MAX_EXPRESSION_COST)
            .then(|| FieldError::forbidden(path.as_str(), limit_message(subject, cost, MAX_EXPRESSION_COST)));
        self.total = self.total.saturating_add(cost);
        if cost >= MIN_REPORTED_COST {
            self.most_expensive.push((path, cost));
            self.most_expensive.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
            self.most_expensive.truncate(MAX_REPORTED_RULES);
        }
        error
    }

    /// Errors for the schema at `path` and its most expensive rules if the total exceeds its limit.
    pub fn errors(self, path: &str) -> Vec<FieldError> {
        if self.total <= MAX_SCHEMA_COST {
            return Vec::new();
        }
        let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        let reported = self.most_expensive.into_iter().map(|(path, _)| FieldError::forbidden(path, detail));
        let subject = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        reported.chain([FieldError::forbidden(path, limit_message(subject, self.total, MAX_SCHEMA_COST))]).collect()
    }
}

fn limit_message(subject: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = match factor {
        factor if factor > 100.0 => "more than 100x".to_owned(),
        // A factor that would be rounded to 1 is printed with all digits.
        factor if factor < 1.5 => format!("{factor:.6}x"),
        factor => format!("{factor:.1}x"),
    };
    format!(
        "{subject} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_formatted_as_in_kubernetes() {
        for (cost, expected) in [
            (10_000_001, "1.000000x"),
            (14_900_000, "1.490000x"),
            (15_000_000, "1.5x"),
            (1_000_000_000, "100.0x"),
            (1_000_000_001, "more than 100x"),
            (u64::MAX, "more than 100x"),
        ] {
            let mut costs = RuleCosts::new(false);
            let error = costs.add("estimated rule cost", "spec".into(), cost).unwrap();
            assert!(error.detail.contains(&format!("by factor of {expected} (")), "{cost}: {}", error.detail);
            assert_eq!(costs.errors("spec").is_empty(), cost <= MAX_SCHEMA_COST, "{cost}");
            assert!(RuleCosts::new(true).add("estimated rule cost", "spec".into(), cost).is_none());
        }
        assert!(RuleCosts::new(false).add("estimated rule cost", "spec".into(), MAX_EXPRESSION_COST).is_none());
    }

    #[test]
    fn most_expensive_rules_are_reported() {
        let mut costs = RuleCosts::new(false);
        for cost in [999_999, 9_000_000, 60_000_000, 50_000_000, 8_000_000, 7_000_000] {
            costs.add("estimated rule cost", format!("rule{cost}"), cost);
        }
        let fields: Vec<String> = costs.errors("schema").into_iter().map(|error| error.field).collect();
        assert_eq!(fields, ["rule60000000", "rule50000000", "rule9000000", "rule8000000", "schema"]);
    }
}
