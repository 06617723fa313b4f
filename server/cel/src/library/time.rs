//! Components of timestamps, in UTC or a time zone (`America/New_York`, `+02:00`), and of durations as totals.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use kube::core::cel::cel::extractors::{Arguments, This};
use kube::core::cel::cel::{Context, ExecutionError, Value as Cel};

use super::Outcome;

/// A component of a civil time.
type ComponentFn = fn(&DateTime) -> i64;

const COMPONENTS: [(&str, ComponentFn); 10] = [
    ("getFullYear", |time| time.year().into()),
    ("getMonth", |time| i64::from(time.month()) - 1),
    ("getDayOfYear", |time| i64::from(time.day_of_year()) - 1),
    ("getDayOfMonth", |time| i64::from(time.day()) - 1),
    ("getDate", |time| time.day().into()),
    ("getDayOfWeek", |time| time.weekday().to_sunday_zero_offset().into()),
    ("getHours", |time| time.hour().into()),
    ("getMinutes", |time| time.minute().into()),
    ("getSeconds", |time| time.second().into()),
    ("getMilliseconds", |time| time.millisecond().into()),
];

pub(super) fn register(context: &mut Context<'_>) {
    for (name, component) in COMPONENTS {
        context.add_function(name, move |This(this): This<Cel>, Arguments(args): Arguments| -> Outcome {
            match (&this, args.as_slice()) {
                (Cel::Timestamp(time), []) => {
                    civil_time(time.timestamp(), time.timestamp_subsec_nanos(), "").map(|at| component(&at))
                }
                (Cel::Timestamp(time), [Cel::String(zone)]) => {
                    civil_time(time.timestamp(), time.timestamp_subsec_nanos(), zone).map(|at| component(&at))
                }
                (Cel::Duration(duration), []) => match name {
                    "getHours" => Ok(duration.num_hours()),
                    "getMinutes" => Ok(duration.num_minutes()),
                    "getSeconds" => Ok(duration.num_seconds()),
                    "getMilliseconds" => Ok(duration.num_milliseconds()),
                    _ => Err(ExecutionError::NoSuchOverload),
                },
                _ => Err(ExecutionError::NoSuchOverload),
            }
            .map(Cel::Int)
        });
    }
}

/// The civil time in a zone.
fn civil_time(seconds: i64, nanos: u32, zone: &str) -> Result<DateTime, ExecutionError> {
    let out_of_range = || ExecutionError::function_error("zone", "timestamp overflow");
    // The conversion is lossless, because the nanoseconds are less than a second.
    let at = |seconds: i64| Timestamp::new(seconds, nanos as i32).map_err(|_| out_of_range());
    let offset = match zone.split_once(':') {
        None if zone.is_empty() || zone == "UTC" => 0,
        None => {
            let unknown = |_| ExecutionError::function_error("zone", format!("unknown time zone {zone}"));
            i64::from(TimeZone::get(zone).map_err(unknown)?.to_offset(at(seconds)?).seconds())
        }
        Some((hours, minutes)) => {
            let unreadable = |text: &str| {
                let reason = format!("strconv.Atoi: parsing {text:?}: invalid syntax");
                ExecutionError::function_error("zone", reason)
            };
            let number =
                |text: &str| text.parse::<i64>().ok().filter(|n| n.abs() < 1000).ok_or_else(|| unreadable(text));
            let (hours_number, minutes) = (number(hours)?, number(minutes)?);
            let minutes = if hours.starts_with('-') { -minutes } else { minutes };
            hours_number * 3600 + minutes * 60
        }
    };
    Ok(TimeZone::UTC.to_datetime(at(seconds + offset)?))
}
