//! Estimated cost of a schema's CEL rules, compared with kube-apiserver's limits. Pure.

use crowsnest_apimachinery::field::FieldError;

/// Cost limit per expression.
const ONE: u64 = 10_000_000;
/// Cost limit for all expressions of a schema.
const ALL: u64 = 100_000_000;
/// Number of rules named when the total exceeds the limit.
const NAMED: usize = 4;

/// Estimated costs of a schema's rules.
#[derive(Debug)]
pub(super) struct Spent {
    total: u64,
    /// The most expensive rules with their paths.
    dearest: Vec<(String, u64)>,
    /// True if the schema is stored already: the limit per expression does not apply.
    stored: bool,
}

impl Spent {
    pub fn new(stored: bool) -> Self {
        Self { total: 0, dearest: Vec::new(), stored }
    }

    /// Adds the cost of an expression; returns an error if it exceeds its limit.
    pub fn count(&mut self, name: &str, path: String, cost: u64) -> Option<FieldError> {
        let alone =
            (!self.stored && cost > ONE).then(|| FieldError::forbidden(path.as_str(), exceeds(name, cost, ONE)));
        self.total = self.total.saturating_add(cost);
        if cost >= ALL / 100 {
            self.dearest.push((path, cost));
            self.dearest.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
            self.dearest.truncate(NAMED);
        }
        alone
    }

    /// Errors if the total exceeds its limit.
    pub fn errors(self, path: &str) -> Vec<FieldError> {
        if self.total <= ALL {
            return Vec::new();
        }
        let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        let named = self.dearest.into_iter().map(|(path, _)| FieldError::forbidden(path, detail));
        let name = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        named.chain([FieldError::forbidden(path, exceeds(name, self.total, ALL))]).collect()
    }
}

fn exceeds(name: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = match factor {
        factor if factor > 100.0 => "more than 100x".to_owned(),
        // A factor that would be rounded to 1 is printed with all digits.
        factor if factor < 1.5 => format!("{factor:.6}x"),
        factor => format!("{factor:.1}x"),
    };
    format!(
        "{name} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors() {
        for (cost, shown) in [
            (10_000_001, "1.000000x"),
            (14_900_000, "1.490000x"),
            (15_000_000, "1.5x"),
            (1_000_000_000, "100.0x"),
            (1_000_000_001, "more than 100x"),
            (u64::MAX, "more than 100x"),
        ] {
            let mut spent = Spent::new(false);
            let error = spent.count("estimated rule cost", "spec".into(), cost).unwrap();
            assert!(error.detail.contains(&format!("by factor of {shown} (")), "{cost}: {}", error.detail);
            assert_eq!(spent.errors("spec").is_empty(), cost <= ALL, "{cost}");
            assert!(Spent::new(true).count("estimated rule cost", "spec".into(), cost).is_none());
        }
        assert!(Spent::new(false).count("estimated rule cost", "spec".into(), ONE).is_none());
    }

    #[test]
    fn most_expensive_rules_are_named() {
        let mut spent = Spent::new(false);
        for cost in [999_999, 9_000_000, 60_000_000, 50_000_000, 8_000_000, 7_000_000] {
            spent.count("estimated rule cost", format!("rule{cost}"), cost);
        }
        let fields: Vec<String> = spent.errors("schema").into_iter().map(|error| error.field).collect();
        assert_eq!(fields, ["rule60000000", "rule50000000", "rule9000000", "rule8000000", "schema"]);
    }
}
