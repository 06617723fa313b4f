//! Label requirements such as `key=value`, and complete selectors in Kubernetes' syntax. Used by [`super::parse`].

use super::ast::{LabelMatch, LabelOp, Pattern};
use super::lex::parse_word_pattern;

/// Parses one requirement by equality or existence: `key=value`, `key==value`, `key!=value`, `key` or `!key`.
pub(super) fn parse_requirement(text: &str) -> Option<LabelMatch> {
    let text = text.trim();
    if let Some(key) = text.strip_prefix('!') {
        return (!key.is_empty() && !key.contains('='))
            .then(|| LabelMatch { key: parse_word_pattern(key), op: LabelOp::Absent });
    }
    let (key, op) = match text.split_once('=') {
        None => (text, LabelOp::Exists),
        Some((key, value)) => match key.strip_suffix('!') {
            Some(key) => (key, LabelOp::NotIn(vec![parse_word_pattern(value.trim())])),
            None => (key, LabelOp::In(vec![parse_word_pattern(value.trim_start_matches('=').trim())])),
        },
    };
    let key = key.trim();
    (!key.is_empty()).then(|| LabelMatch { key: parse_word_pattern(key), op })
}

/// Parses a set-based requirement: `tier in (a,b)` or `tier notin (a,b)`.
pub(super) fn parse_set_requirement(text: &str) -> Option<LabelMatch> {
    let (expression, values) = text.trim().split_once('(')?;
    let values: Vec<Pattern> = values.strip_suffix(')')?.split(',').map(|v| parse_word_pattern(v.trim())).collect();
    let mut words = expression.split_whitespace();
    let (key, op) = (words.next()?, words.next()?);
    let op = match op {
        "in" => LabelOp::In(values),
        "notin" => LabelOp::NotIn(values),
        _ => return None,
    };
    words.next().is_none().then(|| LabelMatch { key: parse_word_pattern(key), op })
}

/// Splits at commas outside parentheses.
pub(super) fn split_selector(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0_i32;
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if c == ',' && depth <= 0 {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts.retain(|p| !p.trim().is_empty());
    parts
}
