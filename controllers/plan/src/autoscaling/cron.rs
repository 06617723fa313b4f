//! Cron schedules: five fields or a descriptor, parsed like Go's `robfig/cron`, which Karmada runs. Karmada's webhook
//! validates with another parser (see [`crowsnest_admission`]), so an admitted schedule can be rejected here.
//!
//! A schedule is due when the local time matches all fields. Runs in the hour that daylight saving time skips are
//! dropped, and runs in the repeated hour happen twice.

use crowsnest_apimachinery::duration;
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{SignedDuration, Timestamp, ToSpan, Zoned};

/// Years to search ahead; a schedule without a match in this time never runs.
const MAX_YEARS_AHEAD: i16 = 5;

/// Parse error, with the message of Karmada's library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error("empty spec string")]
    Empty,
    #[error("provided bad location {0}: unknown time zone {0}")]
    Zone(String),
    #[error("expected exactly 5 fields, found {0}: [{1}]")]
    Fields(usize, String),
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
    #[error("failed to parse duration {0}: {1}")]
    Duration(String, duration::DurationError),
    #[error("too many hyphens: {0}")]
    Hyphens(String),
    #[error("too many slashes: {0}")]
    Slashes(String),
    #[error("failed to parse int from {0}: strconv.Atoi: parsing {0:?}: invalid syntax")]
    Number(String),
    #[error("negative number ({0}) not allowed: {0}")]
    Negative(String),
    #[error("beginning of range ({0}) below minimum ({1}): {2}")]
    Below(u32, u32, String),
    #[error("end of range ({0}) above maximum ({1}): {2}")]
    Above(u32, u32, String),
    #[error("beginning of range ({0}) beyond end of range ({1}): {2}")]
    Order(u32, u32, String),
    #[error("step of range should be a positive number: {0}")]
    Step(String),
}

/// A parsed schedule.
#[derive(Debug, Clone, PartialEq)]
pub enum Schedule {
    At(Box<Fields>),
    /// Fixed interval after the previous run.
    Every(SignedDuration),
}

/// Values that the fields of a cron expression match. Bit n of a field represents the value n.
#[derive(Debug, Clone, PartialEq)]
pub struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// If true, both day of month and weekday must match, because one of them is `*`. Otherwise one match is enough.
    requires_both_days: bool,
    zone: TimeZone,
}

/// Range of a field, and the names of its values.
struct Range {
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

const MINUTES: Range = Range { min: 0, max: 59, names: &[] };
const HOURS: Range = Range { min: 0, max: 23, names: &[] };
const DAYS: Range = Range { min: 1, max: 31, names: &[] };
const MONTHS: Range = Range {
    min: 1,
    max: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAYS: Range = Range { min: 0, max: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

/// Looks up a time zone. `local` is the zone of this process.
pub fn find_time_zone(name: &str, local: &TimeZone) -> Option<TimeZone> {
    match name {
        "" | "UTC" => Some(TimeZone::UTC),
        "Local" => Some(local.clone()),
        name => TimeZone::get(name).ok(),
    }
}

impl Schedule {
    /// Parses a schedule in a time zone. A prefix such as `TZ=Europe/Paris 0 9 * * *` overrides the zone.
    pub fn parse(text: &str, default_zone: TimeZone, local: &TimeZone) -> Result<Self, ScheduleError> {
        if text.is_empty() {
            return Err(ScheduleError::Empty);
        }
        let prefixed = text.strip_prefix("TZ=").or_else(|| text.strip_prefix("CRON_TZ="));
        let (zone, text) = match prefixed.map(|prefixed| prefixed.split_once(' ').unwrap_or((prefixed, ""))) {
            None => (default_zone, text),
            Some((name, rest)) => {
                let found = find_time_zone(name, local).ok_or_else(|| ScheduleError::Zone(name.to_owned()))?;
                (found, rest.trim())
            }
        };
        if text.starts_with('@') {
            return parse_descriptor(text, zone);
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields.as_slice() else {
            return Err(ScheduleError::Fields(fields.len(), fields.join(" ")));
        };
        let (minutes, _) = MINUTES.parse(minute)?;
        let (hours, _) = HOURS.parse(hour)?;
        let (days, any_day) = DAYS.parse(day)?;
        let (months, _) = MONTHS.parse(month)?;
        let (weekdays, any_weekday) = WEEKDAYS.parse(weekday)?;
        let requires_both_days = any_day || any_weekday;
        Ok(Schedule::At(Box::new(Fields { minutes, hours, days, months, weekdays, requires_both_days, zone })))
    }

    /// The first run after `now`. `None` if the schedule never runs.
    pub fn next(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Schedule::Every(period) => {
                let second = Timestamp::from_second(now.as_second()).ok()?;
                second.checked_add(*period).ok()
            }
            Schedule::At(fields) => fields.next(now),
        }
    }
}

fn parse_descriptor(text: &str, zone: TimeZone) -> Result<Schedule, ScheduleError> {
    let fields = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        text => {
            let Some(period) = text.strip_prefix("@every ") else {
                return Err(ScheduleError::Descriptor(text.to_owned()));
            };
            let period = duration::parse(period).map_err(|error| ScheduleError::Duration(text.to_owned(), error))?;
            // Intervals are whole seconds, at least one.
            return Ok(Schedule::Every(SignedDuration::from_secs(period.as_secs().max(1))));
        }
    };
    Schedule::parse(fields, zone, &TimeZone::UTC)
}

impl Range {
    /// The bits of a field, and true if the field contains `*` or `?`.
    fn parse(&self, field: &str) -> Result<(u64, bool), ScheduleError> {
        let (mut bits, mut any) = (0, false);
        for part in field.split(',').filter(|part| !part.is_empty()) {
            let (part_bits, any_part) = self.parse_part(part)?;
            bits |= part_bits;
            any |= any_part;
        }
        Ok((bits, any))
    }

    /// Parses `*`, `low` or `low-high`, each with an optional `/step`. With a step, a single number is the start of a
    /// range up to the maximum.
    fn parse_part(&self, part: &str) -> Result<(u64, bool), ScheduleError> {
        let mut halves = part.split('/');
        let (range, step, more) = (halves.next().unwrap_or_default(), halves.next(), halves.next());
        let mut ends = range.split('-');
        let (low, high, third) = (ends.next().unwrap_or_default(), ends.next(), ends.next());
        let mut has_asterisk = matches!(low, "*" | "?");
        let (min, mut max) = if has_asterisk {
            (self.min, self.max)
        } else {
            let min = self.parse_number(low)?;
            let max = high.map_or(Ok(min), |high| self.parse_number(high))?;
            if third.is_some() {
                return Err(ScheduleError::Hyphens(part.to_owned()));
            }
            (min, max)
        };
        let mut step_size = 1;
        if let Some(step) = step {
            step_size = parse_number(step)?;
            if more.is_some() {
                return Err(ScheduleError::Slashes(part.to_owned()));
            }
            if high.is_none() {
                max = self.max;
            }
            has_asterisk &= step_size <= 1;
        }
        if min < self.min {
            return Err(ScheduleError::Below(min, self.min, part.to_owned()));
        }
        if max > self.max {
            return Err(ScheduleError::Above(max, self.max, part.to_owned()));
        }
        if min > max {
            return Err(ScheduleError::Order(min, max, part.to_owned()));
        }
        if step_size == 0 {
            return Err(ScheduleError::Step(part.to_owned()));
        }
        let step = usize::try_from(step_size).unwrap_or(usize::MAX);
        let bits = (min..=max).step_by(step).fold(0, |bits, value| bits | 1 << value);
        Ok((bits, has_asterisk))
    }

    fn parse_number(&self, text: &str) -> Result<u32, ScheduleError> {
        let named = self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        match named.and_then(|index| u32::try_from(index).ok()) {
            Some(index) => Ok(self.min + index),
            None => parse_number(text),
        }
    }
}

fn parse_number(text: &str) -> Result<u32, ScheduleError> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    match digits.parse() {
        Ok(_) if digits != text => Err(ScheduleError::Negative(text.to_owned())),
        Ok(number) => Ok(number),
        Err(_) => Err(ScheduleError::Number(text.to_owned())),
    }
}

impl Fields {
    fn has(bits: u64, value: i8) -> bool {
        u32::try_from(value).is_ok_and(|value| bits & 1 << value != 0)
    }

    fn has_day(&self, at: &Zoned) -> bool {
        let day = Self::has(self.days, at.day());
        let weekday = Self::has(self.weekdays, at.weekday().to_sunday_zero_offset());
        if self.requires_both_days { day && weekday } else { day || weekday }
    }

    /// Advances by the largest unit (month, day, hour, minute) that does not match.
    fn next(&self, now: Timestamp) -> Option<Timestamp> {
        // The first full minute after `now`; schedules have no seconds.
        let minute = now.as_second().div_euclid(60).checked_add(1)?.checked_mul(60)?;
        let mut at = Timestamp::from_second(minute).ok()?.to_zoned(self.zone.clone());
        let last = at.year().saturating_add(MAX_YEARS_AHEAD);
        // In zones whose UTC offset is not in whole minutes, minutes begin at other seconds.
        let seconds = i64::from(at.second());
        if seconds != 0 {
            at = at.checked_sub(seconds.seconds()).ok()?;
            if at.timestamp() <= now {
                at = at.checked_add(1.minute()).ok()?;
            }
        }
        while at.year() <= last {
            at = if !Self::has(self.months, at.month()) {
                let month = at.date().first_of_month().checked_add(1.month()).ok()?;
                month.to_zoned(self.zone.clone()).ok()?.start_of_day().ok()?
            } else if !self.has_day(&at) {
                at.tomorrow().ok()?.start_of_day().ok()?
            } else if !Self::has(self.hours, at.hour()) {
                self.next_hour(&at)?
            } else if !Self::has(self.minutes, at.minute()) {
                at.checked_add(1.minute()).ok()?
            } else {
                return Some(at.timestamp());
            };
        }
        None
    }

    /// Start of the next hour, or the next minute if the UTC offset changes before it.
    fn next_hour(&self, at: &Zoned) -> Option<Zoned> {
        let hour = at.checked_add((60 - i64::from(at.minute())).minutes()).ok()?;
        if hour.offset() == at.offset() { Some(hour) } else { at.checked_add(1.minute()).ok() }
    }
}
