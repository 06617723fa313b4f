//! Commands that compute values from their arguments.

use std::collections::BTreeMap;

use super::super::expand::arithmetic;
use super::super::{Shell, Stdio};
use super::{Code, print};

pub async fn seq(args: &[String], io: &Stdio) -> Code {
    let numbers: Vec<i64> = args.iter().filter_map(|a| a.parse().ok()).collect();
    let (first, step, last) = match numbers.as_slice() {
        [last] => (1, 1, *last),
        [first, last] => (*first, 1, *last),
        [first, step, last] if *step != 0 => (*first, *step, *last),
        _ => {
            io.error("seq: usage: seq [first [step]] last").await;
            return Ok(1);
        }
    };
    let mut number = first;
    while (step > 0 && number <= last) || (step < 0 && number >= last) {
        print(&io.stdout, format!("{number}\n")).await?;
        number += step;
    }
    Ok(0)
}

/// `expr`: integer arithmetic and comparisons. The exit code is 1 if the value is 0, and 2 for invalid expressions.
pub async fn expr(shell: &Shell, args: &[String], io: &Stdio) -> Code {
    let text = args.join(" ");
    let value = match args {
        [word] => Some(word.clone()),
        _ => arithmetic(&text, &BTreeMap::new()).map(|value| value.to_string()),
    };
    let Some(value) = value else {
        io.error(&format!("{}: expr: syntax error: {text}", shell.name)).await;
        return Ok(2);
    };
    print(&io.stdout, format!("{value}\n")).await?;
    Ok(i32::from(value.is_empty() || value == "0"))
}

/// `basename` and `dirname`.
pub async fn path_part(name: &str, args: &[String], io: &Stdio) -> Code {
    let path = args.first().map_or("", String::as_str).trim_end_matches('/');
    let part = match (name, path.rsplit_once('/')) {
        ("basename", Some((_, base))) => base,
        ("basename", None) => path,
        (_, Some(("", _))) => "/",
        (_, Some((directory, _))) => directory,
        (_, None) => ".",
    };
    print(&io.stdout, format!("{part}\n")).await?;
    Ok(0)
}
