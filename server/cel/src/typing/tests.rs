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
    gives: Option<String>,
    cost: Option<u64>,
    refused: Option<String>,
}

#[test]
fn results_match_kubernetes() {
    let Cases { schemas, cases } = serde_saphyr::from_str(include_str!("cases.yaml")).unwrap();
    let mut wrong = Vec::new();
    for (schema, cases) in cases {
        let declared = DeclType::from_schema(&schemas[&schema], false, "selfType0").unwrap();
        let mut declarations = Declarations::default();
        declarations.add("self", &declared);
        for Case { rule, gives, cost, refused } in cases {
            let found = match check(&rule, &declarations) {
                Ok(checked) => json!([checked.result_type().to_string(), checked.cost(&declared), null]),
                Err(text) => json!([null, null, text]),
            };
            let expected = json!([gives, cost, refused]);
            if found != expected {
                wrong.push(format!("{rule}\n  found  {found}\n  expected {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
