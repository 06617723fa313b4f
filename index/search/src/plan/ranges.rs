//! Numbers, quantities, ages and times as ranges of integers.

use crate::document::columns::Number;
use crate::plan::predicate::Match;
use crowsnest_query::{ComparisonOperator, FieldDefinition, FieldKind, Literal, Scalar, Value};

/// The column of a field.
pub fn number_column(field: &str) -> Option<Number> {
    let name = match field {
        "age" | "created" => "created",
        other => other,
    };
    Number::ALL.iter().copied().find(|number| number.name() == name)
}

/// The condition for a value of a numeric field.
pub fn number_match(field: &'static FieldDefinition, value: &Value, now: i64) -> Match {
    let Some(column) = number_column(field.name) else { return Match::None };
    // CPU is counted in millicores.
    let scale = if matches!(column, Number::CpuRequest | Number::CpuLimit) { 1000.0 } else { 1.0 };
    let is_age = field.kind == FieldKind::Age;
    let scalar = |literal: &Literal| scalar(literal, scale, is_age, now);
    match value {
        Value::Exists => Match::has(column.name()),
        Value::Compare(operator, literal) => {
            let (number, is_reversed) = scalar(literal);
            comparison_match(column, if is_reversed { reverse(*operator) } else { *operator }, number)
        }
        Value::Range(low, high) => {
            let (mut from, mut to) = (None, None);
            if let Some((number, is_reversed)) = low.as_ref().map(scalar) {
                if is_reversed { to = Some(number.floor() as i64) } else { from = Some(number.ceil() as i64) }
            }
            if let Some((number, is_reversed)) = high.as_ref().map(scalar) {
                if is_reversed { from = Some(number.ceil() as i64) } else { to = Some(number.floor() as i64) }
            }
            Match::Number(column, from, to)
        }
        Value::Pattern(_) | Value::Label(_) | Value::Selector(_) => Match::None,
    }
}

/// A literal in the column's unit; true if a larger literal means a smaller column value (ages).
fn scalar(literal: &Literal, scale: f64, is_age: bool, unix: i64) -> (f64, bool) {
    let now = unix as f64;
    match &literal.value {
        Scalar::Number(number) if is_age => (now - number, true),
        Scalar::Number(number) => (number * scale, false),
        Scalar::Duration(seconds) => (now - seconds, true),
        Scalar::Moment(moment) => (moment.seconds(timestamp(unix)), false),
    }
}

fn timestamp(unix: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(unix).unwrap_or_default()
}

fn reverse(operator: ComparisonOperator) -> ComparisonOperator {
    match operator {
        ComparisonOperator::Less => ComparisonOperator::Greater,
        ComparisonOperator::LessOrEqual => ComparisonOperator::GreaterOrEqual,
        ComparisonOperator::Greater => ComparisonOperator::Less,
        ComparisonOperator::GreaterOrEqual => ComparisonOperator::LessOrEqual,
        same => same,
    }
}

/// The integer range equivalent to a comparison with a possibly fractional number.
fn comparison_match(column: Number, operator: ComparisonOperator, number: f64) -> Match {
    let is_integer = number.fract() == 0.0;
    let (floor, ceil) = (number.floor() as i64, number.ceil() as i64);
    match operator {
        ComparisonOperator::Less => match floor.checked_sub(i64::from(is_integer)) {
            Some(max) => Match::Number(column, None, Some(max)),
            None => Match::None,
        },
        ComparisonOperator::LessOrEqual => Match::Number(column, None, Some(floor)),
        ComparisonOperator::Greater => match ceil.checked_add(i64::from(is_integer)) {
            Some(min) => Match::Number(column, Some(min), None),
            None => Match::None,
        },
        ComparisonOperator::GreaterOrEqual => Match::Number(column, Some(ceil), None),
        ComparisonOperator::Equal if is_integer => Match::Number(column, Some(floor), Some(floor)),
        ComparisonOperator::Equal => Match::None,
        ComparisonOperator::NotEqual => Match::Number(column, Some(ceil), Some(floor)).negated(),
    }
}
