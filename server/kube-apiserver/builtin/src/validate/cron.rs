//! Validates cron schedules like `robfig/cron`. Has no side effects.

/// Bounds of the five fields, and names that can replace numbers.
const FIELDS: [(u32, u32, &[&str]); 5] = [
    (0, 59, &[]),
    (0, 23, &[]),
    (1, 31, &[]),
    (1, 12, &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]),
    (0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
];

/// `cron.ParseStandard`: five fields or a descriptor.
pub(super) fn parse(schedule: &str) -> Result<(), String> {
    if let Some(descriptor) = schedule.strip_prefix('@') {
        if let Some(duration) = descriptor.strip_prefix("every ") {
            let parsed = crowsnest_apimachinery::duration::parse(duration);
            return parsed.map(drop).map_err(|reason| format!("failed to parse duration {schedule}: {reason}"));
        }
        return match descriptor {
            "yearly" | "annually" | "monthly" | "weekly" | "daily" | "midnight" | "hourly" => Ok(()),
            _ => Err(format!("unrecognized descriptor: {schedule}")),
        };
    }
    let parts: Vec<&str> = schedule.split_whitespace().collect();
    if parts.len() != FIELDS.len() {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", parts.len(), parts.join(" ")));
    }
    for (part, (low, high, names)) in parts.iter().zip(FIELDS) {
        for range in part.split(',') {
            check_range(range, low, high, names)?;
        }
    }
    Ok(())
}

/// Checks a range of a field with a step: `*/5`, `1-5`, `mon`.
fn check_range(range: &str, low: u32, high: u32, names: &[&str]) -> Result<(), String> {
    let number = |text: &str| -> Result<u32, String> {
        let lower = text.to_lowercase();
        if let Some(index) = names.iter().position(|name| *name == lower) {
            return Ok(low + u32::try_from(index).unwrap_or(0));
        }
        text.parse::<u32>()
            .map_err(|_| format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"))
    };
    let steps: Vec<&str> = range.split('/').collect();
    let bounds: Vec<&str> = steps[0].split('-').collect();
    let (start, end) = match bounds.as_slice() {
        ["*" | "?"] => (low, high),
        [one] => {
            let start = number(one)?;
            (start, if steps.len() == 2 { high } else { start })
        }
        [from, to] => (number(from)?, number(to)?),
        _ => return Err(format!("too many hyphens: {range}")),
    };
    match steps.as_slice() {
        [_] => {}
        [_, step] => {
            if number(step)? == 0 {
                return Err(format!("step of range should be a positive number: {range}"));
            }
        }
        _ => return Err(format!("too many slashes: {range}")),
    }
    if start < low {
        return Err(format!("beginning of range ({start}) below minimum ({low}): {range}"));
    }
    if end > high {
        return Err(format!("end of range ({end}) above maximum ({high}): {range}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {range}"));
    }
    Ok(())
}
