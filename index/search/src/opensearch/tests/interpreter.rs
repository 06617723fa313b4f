//! Evaluates queries of OpenSearch on one document, as its documentation describes them for the fields of the index template.

use crate::opensearch::terms::is_java_whitespace;
use crate::plan::patterns::is_within_edits;
use serde_json::Value;

/// The score of a document, if the query finds it.
pub fn score(query: &Value, document: &Value) -> Option<f32> {
    let (kind, body) = query.as_object().unwrap().iter().next().unwrap();
    match kind.as_str() {
        "match_all" => Some(1.0),
        "match_none" => None,
        "constant_score" => score(&body["filter"], document).map(|_| body["boost"].as_f64().unwrap() as f32),
        "bool" => score_bool(body, document),
        leaf => is_leaf_match(leaf, body, document).then_some(1.0),
    }
}

fn score_bool(body: &Value, document: &Value) -> Option<f32> {
    let parts = |name: &str| body[name].as_array().cloned().unwrap_or_default();
    let boost = body["boost"].as_f64().unwrap_or(1.0) as f32;
    let (must, filter, should) = (parts("must"), parts("filter"), parts("should"));
    if parts("must_not").iter().any(|part| score(part, document).is_some()) {
        return None;
    }
    filter.iter().try_for_each(|part| score(part, document).map(drop))?;
    let mut sum = 0.0;
    for part in &must {
        sum += score(part, document)?;
    }
    let found: Vec<f32> = should.iter().filter_map(|part| score(part, document)).collect();
    if found.is_empty() && !should.is_empty() && must.is_empty() && filter.is_empty() {
        return None;
    }
    Some((sum + found.iter().sum::<f32>()) * boost)
}

/// Values of a field as the engine keeps them.
fn values(field: &str, document: &Value) -> Vec<Value> {
    match &document[field.split('.').next().unwrap()] {
        Value::Object(group) => match group.get(field.split_once('.').unwrap().1) {
            Some(Value::Array(values)) => values.clone(),
            other => other.into_iter().cloned().collect(),
        },
        Value::Array(values) => values.clone(),
        Value::Null => Vec::new(),
        one => vec![one.clone()],
    }
}

/// Terms of a field: for each value, the terms at each position.
fn terms(field: &str, document: &Value) -> Vec<Vec<Vec<String>>> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let words = |text: &str| -> Vec<Vec<String>> {
        text.split(is_java_whitespace).filter(|word| !word.is_empty()).map(|word| vec![word.to_owned()]).collect()
    };
    let lines = |text: &str| -> Vec<Vec<String>> {
        text.split('\n').map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    };
    let field_terms = |value: &Value| match field {
        "content" | "grams" => words(&text(value)),
        "said" => lines(&text(value)),
        _ => vec![vec![text(value)]],
    };
    values(field, document).iter().map(field_terms).collect()
}

fn is_leaf_match(leaf: &str, body: &Value, document: &Value) -> bool {
    let (field, operand) = body.as_object().unwrap().iter().next().unwrap();
    let terms = terms(field, document);
    let any = |passes: &dyn Fn(&str) -> bool| terms.iter().flatten().flatten().any(|term| passes(term));
    let operand_text = operand.as_str().or_else(|| operand["value"].as_str()).unwrap_or_default();
    match leaf {
        "term" => any(&|term| term == operand_text),
        "terms" => {
            let values = values(field, document);
            operand.as_array().unwrap().iter().any(|value| values.contains(value))
        }
        "prefix" => any(&|term| term.starts_with(operand_text)),
        "wildcard" => {
            let regex = regex::Regex::new(&format!("^(?s:{})$", wildcard_to_regex(operand_text))).unwrap();
            any(&|term| regex.is_match(term))
        }
        "regexp" => {
            let regex = regex::Regex::new(&format!("^(?s:{})$", from_lucene(operand_text))).unwrap();
            any(&|term| regex.is_match(term))
        }
        "fuzzy" => {
            let distance = operand["fuzziness"].as_u64().unwrap() as u8;
            any(&|term| is_within_edits(term, operand_text, distance, false))
        }
        "range" => terms.iter().flatten().flatten().any(|term| in_range(term, operand)),
        "match_phrase" => contains_phrase(&analyze(field, operand.as_str().unwrap()), &terms, false),
        "match_phrase_prefix" => contains_phrase(&analyze(field, operand["query"].as_str().unwrap()), &terms, true),
        other => panic!("{other} is not interpreted"),
    }
}

/// Converts a pattern of Lucene to the dialect of the `regex` crate, in which escaped angle brackets are word
/// boundaries.
pub fn from_lucene(pattern: &str) -> String {
    pattern.replace("\\<", "<").replace("\\>", ">")
}

fn wildcard_to_regex(pattern: &str) -> String {
    let (mut regex, mut escaped) = (String::new(), false);
    for c in pattern.chars() {
        match c {
            _ if std::mem::take(&mut escaped) => regex.push_str(&regex::escape(&c.to_string())),
            '\\' => escaped = true,
            '*' => regex.push_str(".*"),
            '?' => regex.push('.'),
            other => regex.push_str(&regex::escape(&other.to_string())),
        }
    }
    regex
}

fn in_range(term: &str, range: &Value) -> bool {
    range.as_object().unwrap().iter().all(|(end, bound)| {
        let order = match bound {
            Value::Number(number) => term.parse::<i64>().unwrap().cmp(&number.as_i64().unwrap()),
            text => term.cmp(text.as_str().unwrap()),
        };
        match end.as_str() {
            "gte" => order.is_ge(),
            "gt" => order.is_gt(),
            "lte" => order.is_le(),
            _ => order.is_lt(),
        }
    })
}

fn analyze(field: &str, text: &str) -> Vec<String> {
    match field {
        "said" => text.split('\n').map(str::to_owned).collect(),
        _ => text.split(is_java_whitespace).filter(|word| !word.is_empty()).map(str::to_owned).collect(),
    }
}

/// True if the words are at consecutive positions of a text. The last one may be a prefix if `is_prefix`.
fn contains_phrase(words: &[String], texts: &[Vec<Vec<String>>], is_prefix: bool) -> bool {
    let fits = |nth: usize, term: &String| {
        if is_prefix && nth + 1 == words.len() { term.starts_with(&words[nth]) } else { *term == words[nth] }
    };
    let at =
        |window: &[Vec<String>]| window.iter().enumerate().all(|(nth, terms)| terms.iter().any(|term| fits(nth, term)));
    !words.is_empty() && texts.iter().any(|text| text.windows(words.len()).any(at))
}
