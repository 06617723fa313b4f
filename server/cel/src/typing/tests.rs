//! Types, errors and costs, compared with the results of Kubernetes' library.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::*;

#[derive(Deserialize)]
struct Cases {
    schemas: BTreeMap<String, Value>,
    cases: BTreeMap<String, Vec<Case>>,
}

#[derive(Deserialize)]
struct Case {
    rule: String,
    #[serde(rename = "gives")]
    result_type: Option<String>,
    cost: Option<u64>,
    #[serde(rename = "refused")]
    error: Option<String>,
}

#[test]
fn results_match_kubernetes() {
    let Cases { schemas, cases } = serde_saphyr::from_str(include_str!("cases.yaml")).unwrap();
    let mut mismatches = Vec::new();
    for (schema, cases) in cases {
        let declared = DeclType::from_schema(&schemas[&schema], false, "selfType0").unwrap();
        let mut declarations = Declarations::default();
        declarations.add("self", &declared);
        for Case { rule, result_type, cost, error } in cases {
            let found = match check(&rule, &declarations) {
                Ok(checked) => json!([checked.result_type().to_string(), checked.cost(&declared), null]),
                Err(text) => json!([null, null, text]),
            };
            let expected = json!([result_type, cost, error]);
            if found != expected {
                mismatches.push(format!("{rule}\n  found  {found}\n  expected {expected}"));
            }
        }
    }
    assert!(mismatches.is_empty(), "{} mismatches:\n{}", mismatches.len(), mismatches.join("\n"));
}
