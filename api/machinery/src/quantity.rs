//! Resource quantities, parsed, added and printed exactly like in Kubernetes.
//!
//! A quantity is an integer multiple of 10⁻⁹ with the format in which it was written. Finer fractions are rounded
//! away from zero, so that a small request never becomes zero. Quantities beyond ±1.7·10²⁹ are limited to that
//! bound.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Reason why a text is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// Format of a quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// `12e6`
    DecimalExponent,
    /// `12Mi`
    BinarySI,
    /// `12M`
    #[default]
    DecimalSI,
}

/// A resource quantity. Two quantities are equal if their values are, regardless of their format.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nano: i128,
    format: Format,
}

const NANO: i128 = 1_000_000_000;
const DECIMAL_SUFFIXES: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// Exponent of the largest suffix in [`DECIMAL_SUFFIXES`].
const MAX_DECIMAL_SUFFIX: i64 = 18;
/// Largest multiple of three that is parsed as an exponent: Go's are `int32`.
const MAX_EXPONENT: i64 = 2_147_483_646;

impl Quantity {
    pub const ZERO: Self = Self { nano: 0, format: Format::DecimalSI };

    /// A number of whole units.
    pub fn new(units: i64, format: Format) -> Self {
        Self { nano: i128::from(units) * NANO, format }
    }

    /// A number of thousandths.
    pub fn from_milli(milli: i64, format: Format) -> Self {
        Self { nano: i128::from(milli) * (NANO / 1000), format }
    }

    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let parts = Parts::split(text)?;
        let scale = parse_scale(parts.suffix).ok_or(QuantityError::Suffix)?;
        parts.to_quantity(scale)
    }

    /// The output of Go's `apimachinery` for a quantity parsed from this text: unchanged if it looks canonical,
    /// otherwise in canonical form.
    pub fn canonicalize(text: &str) -> Result<String, QuantityError> {
        let parts = Parts::split(text)?;
        let scale = parse_scale(parts.suffix).ok_or(QuantityError::Suffix)?;
        let quantity = parts.to_quantity(scale)?;
        if parts.is_canonical(scale) {
            return Ok(text.to_owned());
        }
        if quantity.nano.unsigned_abs() >= i128::MAX.unsigned_abs() && !scale.is_binary {
            return Ok(parts.to_canonical_decimal(scale));
        }
        Ok(quantity.to_string())
    }

    pub fn format(&self) -> Format {
        self.format
    }

    pub fn is_zero(&self) -> bool {
        self.nano == 0
    }

    /// The sign: -1, 0 or 1.
    pub fn sign(&self) -> i32 {
        match self.nano.cmp(&0) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }

    /// Whole units, rounded away from zero and limited to `i64`.
    pub fn value(&self) -> i64 {
        self.scaled_value(0)
    }

    /// Thousandths, rounded away from zero and limited to `i64`.
    pub fn milli_value(&self) -> i64 {
        self.scaled_value(-3)
    }

    /// The value in units of 10^scale, rounded away from zero and limited to `i64`.
    pub fn scaled_value(&self, scale: i32) -> i64 {
        let scaled = multiply_by_power_of_ten(self.nano, -9 - scale);
        i64::try_from(scaled).unwrap_or(if scaled < 0 { i64::MIN } else { i64::MAX })
    }

    /// Rounded away from zero to a multiple of 10^scale.
    pub fn round_up(&self, scale: i32) -> Self {
        Self {
            nano: multiply_by_power_of_ten(multiply_by_power_of_ten(self.nano, -9 - scale), scale + 9),
            format: self.format,
        }
    }

    pub fn as_f64(&self) -> f64 {
        self.nano as f64 / NANO as f64
    }

    /// The product with an integer, limited to the range of quantities.
    pub fn multiply(&self, factor: i64) -> Self {
        Self { nano: self.nano.saturating_mul(i128::from(factor)), format: self.format }
    }

    /// The quotient, rounded down. None if `other` is zero.
    pub fn divide(&self, other: &Self) -> Option<i64> {
        let times = self.nano.checked_div(other.nano)?;
        Some(i64::try_from(times).unwrap_or(if times < 0 { i64::MIN } else { i64::MAX }))
    }

    /// Zero adopts the format of the other operand.
    fn common_format(&self, other: &Self) -> Format {
        if self.is_zero() { other.format } else { self.format }
    }

    fn write_decimal(&self, formatter: &mut fmt::Formatter<'_>, exponents: bool) -> fmt::Result {
        let (mut mantissa, mut exponent) = (self.nano, -9);
        while mantissa % 1000 == 0 && (exponents || exponent < 18) {
            mantissa /= 1000;
            exponent += 3;
        }
        write!(formatter, "{mantissa}")?;
        if !exponents {
            let suffix = DECIMAL_SUFFIXES.iter().find(|(_, power)| *power == exponent).map_or("", |(suffix, _)| suffix);
            formatter.write_str(suffix)
        } else if exponent == 0 {
            Ok(())
        } else {
            write!(formatter, "e{exponent}")
        }
    }

    fn write_binary(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut mantissa, mut power) = (self.nano / NANO, 0);
        while mantissa % 1024 == 0 && power + 1 < BINARY_SUFFIXES.len() {
            mantissa /= 1024;
            power += 1;
        }
        write!(formatter, "{mantissa}{}", BINARY_SUFFIXES[power])
    }
}

/// Multiplies by 10^power; lost fractions are rounded away from zero.
fn multiply_by_power_of_ten(value: i128, power: i32) -> i128 {
    let Some(factor) = 10_i128.checked_pow(power.unsigned_abs()) else {
        return if power > 0 { value.saturating_mul(i128::MAX) } else { value.signum() };
    };
    if power >= 0 {
        return value.saturating_mul(factor);
    }
    let quotient = value / factor;
    if value % factor == 0 { quotient } else { quotient + value.signum() }
}

/// Multiplier of a suffix.
#[derive(Clone, Copy)]
struct Scale {
    is_binary: bool,
    /// Exponent of 2 if `is_binary`, otherwise of 10. It fits an `i32`, so that sums with numbers of digits do not
    /// overflow.
    exponent: i64,
    format: Format,
}

fn parse_scale(suffix: &str) -> Option<Scale> {
    if let Some((_, exponent)) = DECIMAL_SUFFIXES.iter().find(|(word, _)| *word == suffix) {
        return Some(Scale { is_binary: false, exponent: i64::from(*exponent), format: Format::DecimalSI });
    }
    if let Some(power) = BINARY_SUFFIXES.iter().position(|word| *word == suffix) {
        return Some(Scale { is_binary: true, exponent: 10 * i64::try_from(power).ok()?, format: Format::BinarySI });
    }
    let exponent = suffix.strip_prefix(['e', 'E']).filter(|rest| !rest.is_empty())?;
    // Go truncates the exponent to 32 bits.
    let exponent = i64::from(exponent.parse::<i64>().ok()? as i32);
    Some(Scale { is_binary: false, exponent, format: Format::DecimalExponent })
}

/// Parts of a quantity's text.
struct Parts<'t> {
    is_negative: bool,
    /// Without leading zeros.
    digits: &'t str,
    fraction: &'t str,
    suffix: &'t str,
    /// True if there are no digits.
    is_empty: bool,
}

impl<'t> Parts<'t> {
    fn split(text: &'t str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let (is_negative, rest) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let rest_of_number = rest.trim_start_matches('0');
        let zeros = rest.len() - rest_of_number.len();
        let (digits, rest) = split_while(rest_of_number, |byte| byte.is_ascii_digit());
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => split_while(rest, |byte| byte.is_ascii_digit()),
            None => ("", rest),
        };
        let (_, rest) = split_while(suffix, |byte| b"eEinumkKMGTP".contains(&byte));
        let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
        if !split_while(rest, |byte| byte.is_ascii_digit()).1.is_empty() {
            return Err(QuantityError::Format);
        }
        Ok(Self { is_negative, digits, fraction, suffix, is_empty: zeros + digits.len() + fraction.len() == 0 })
    }

    /// All digits as one number, without the decimal point, if the fast path of Go's `ParseQuantity` accepts the text;
    /// otherwise `None`.
    fn parse_fast(&self, scale: Scale) -> Option<i64> {
        let integer_digits = i64::try_from(self.digits.len().max(1)).ok()?;
        let places = i64::try_from(self.fraction.len()).ok()?;
        // Number of decimal digits that are still free in an `i64`, as `precision` in Go.
        let (free_digits, factor, exponent) = match scale.is_binary {
            true if self.fraction.is_empty() => (14 - integer_digits - scale.exponent * 3 / 10, 1 << scale.exponent, 0),
            true => return None,
            false => (18 - integer_digits - places, 1, scale.exponent),
        };
        if free_digits < 0 || exponent - places < -9 {
            return None;
        }
        let number = format!("0{}{}", self.digits, self.fraction).parse::<i64>().ok()?;
        number.checked_mul(factor).map(|_| number)
    }

    /// True if Go keeps the text because it considers it canonical.
    fn is_canonical(&self, scale: Scale) -> bool {
        let Some(number) = self.parse_fast(scale) else { return false };
        // As in Go's `ParseQuantity`, a number with a binary suffix is kept unless it is a multiple of 8.
        if scale.is_binary {
            return number & 7 != 0;
        }
        let places = self.fraction.len() as i64;
        let integer_part = if self.digits.is_empty() { "0" } else { self.digits };
        let all_digits = format!("{integer_part}{}", self.fraction);
        (scale.exponent - places) % 3 == 0 && !all_digits.ends_with("000") && !integer_part.starts_with('0')
    }

    /// Values of all digits, without the decimal point.
    fn digit_values(&self) -> impl Iterator<Item = u8> {
        self.digits.bytes().chain(self.fraction.bytes()).map(|digit| digit - b'0')
    }

    /// Number of digits before the decimal point if the number were written in units of 10⁻⁹. Negative if zeros
    /// would follow the point; above the number of digits if zeros would precede it.
    fn nano_digits(&self, scale: Scale) -> i64 {
        self.digits.len() as i64 + scale.exponent + 9
    }

    /// Canonical form of a number that exceeds the limit of [`Quantity`].
    fn to_canonical_decimal(&self, scale: Scale) -> String {
        let mut digits: Vec<u8> = self.digit_values().collect();
        let nano_digits = self.nano_digits(scale);
        let lost = digits.split_off(usize::try_from(nano_digits).unwrap_or(0).min(digits.len()));
        let mut exponent = nano_digits - digits.len() as i64 - 9;
        if lost.iter().any(|digit| *digit != 0) {
            increment(&mut digits);
        }
        while digits.pop_if(|digit| *digit == 0).is_some() {
            exponent += 1;
        }
        let max_exponent = if scale.format == Format::DecimalExponent { MAX_EXPONENT } else { MAX_DECIMAL_SUFFIX };
        let power = (exponent - exponent.rem_euclid(3)).min(max_exponent);
        digits.resize(digits.len() + usize::try_from(exponent - power).unwrap_or(0), 0);
        let sign = if self.is_negative { "-" } else { "" };
        let number: String =
            digits.iter().skip_while(|digit| **digit == 0).map(|digit| char::from(b'0' + digit)).collect();
        let suffix = match scale.format {
            _ if power == 0 => String::new(),
            Format::DecimalExponent => format!("e{power}"),
            _ => {
                let suffix = DECIMAL_SUFFIXES.iter().find(|(_, exponent)| i64::from(*exponent) == power);
                suffix.map_or("", |(text, _)| text).to_owned()
            }
        };
        format!("{sign}{number}{suffix}")
    }

    /// The number without its sign in units of 10⁻⁹, rounded up, for a suffix of base 10.
    fn to_decimal_nano(&self, scale: Scale) -> i128 {
        let nano_digits = self.nano_digits(scale);
        let mut digits = self.digit_values();
        let whole_digits = digits.by_ref().take(usize::try_from(nano_digits).unwrap_or(0));
        let whole = whole_digits.fold(0, append_digit);
        let zeros = nano_digits - (self.digits.len() + self.fraction.len()) as i64;
        let whole = multiply_by_power_of_ten(whole, i32::try_from(zeros.max(0)).unwrap_or(i32::MAX));
        whole.saturating_add(i128::from(digits.any(|digit| digit != 0)))
    }

    /// The number without its sign in units of 10⁻⁹, rounded up, for a suffix of base 2.
    fn to_binary_nano(&self, scale: Scale) -> i128 {
        let unit = NANO << scale.exponent;
        let whole = self.digits.bytes().map(|digit| digit - b'0').fold(0, append_digit);
        // The fraction is multiplied digit by digit, beginning with the last one. Rounding down after each digit yields the
        // same result as rounding down once at the end.
        let (mut nano, mut is_exact) = (0_i128, true);
        for digit in self.fraction.bytes().rev() {
            let sum = nano + i128::from(digit - b'0') * unit;
            nano = sum / 10;
            is_exact &= sum % 10 == 0;
        }
        whole.saturating_mul(unit).saturating_add(nano + i128::from(!is_exact))
    }

    fn to_quantity(&self, scale: Scale) -> Result<Quantity, QuantityError> {
        if self.is_empty && self.parse_fast(scale).is_none() {
            return Err(QuantityError::Numeric);
        }
        let mut nano = if scale.is_binary { self.to_binary_nano(scale) } else { self.to_decimal_nano(scale) };
        let mut format = scale.format;
        if format == Format::BinarySI {
            nano = nano.min(i128::from(i64::MAX) * NANO);
            if nano > 0 && nano < NANO {
                format = Format::DecimalSI;
            }
        }
        Ok(Quantity { nano: if self.is_negative { -nano } else { nano }, format })
    }
}

/// Appends a decimal digit to a number.
fn append_digit(number: i128, digit: u8) -> i128 {
    number.saturating_mul(10).saturating_add(i128::from(digit))
}

/// Adds one to a number given by its decimal digits.
fn increment(digits: &mut Vec<u8>) {
    for digit in digits.iter_mut().rev() {
        if *digit < 9 {
            *digit += 1;
            return;
        }
        *digit = 0;
    }
    digits.insert(0, 1);
}

fn split_while(text: &str, matches: impl Fn(u8) -> bool) -> (&str, &str) {
    let end = text.bytes().position(|byte| !matches(byte)).unwrap_or(text.len());
    text.split_at(end)
}

impl fmt::Display for Quantity {
    /// Canonical form: no fraction, with the largest suffix that keeps the number an integer.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nano == 0 {
            return formatter.write_str("0");
        }
        match self.format {
            Format::DecimalExponent => self.write_decimal(formatter, true),
            Format::BinarySI if self.nano.abs() >= 1024 * NANO && self.nano % NANO == 0 => self.write_binary(formatter),
            Format::DecimalSI | Format::BinarySI => self.write_decimal(formatter, false),
        }
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Self::parse(text)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nano.cmp(&other.nano)
    }
}

impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { nano: self.nano.saturating_add(other.nano), format: self.common_format(&other) }
    }
}

impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { nano: self.nano.saturating_sub(other.nano), format: self.common_format(&other) }
    }
}

impl Neg for Quantity {
    type Output = Self;

    fn neg(self) -> Self {
        Self { nano: -self.nano, format: self.format }
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Quantity {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl TryFrom<&WireQuantity> for Quantity {
    type Error = QuantityError;

    fn try_from(wire: &WireQuantity) -> Result<Self, QuantityError> {
        Self::parse(wire.0.trim())
    }
}

impl From<Quantity> for WireQuantity {
    fn from(quantity: Quantity) -> Self {
        WireQuantity(quantity.to_string())
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => text,
            serde_json::Value::Number(number) => number.to_string(),
            serde_json::Value::Null => return Ok(Self::ZERO),
            _ => return Err(serde::de::Error::custom(QuantityError::Format)),
        };
        Self::parse(written.trim()).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
