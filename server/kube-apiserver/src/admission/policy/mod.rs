//! Status of ValidatingAdmissionPolicies: type checking errors of their expressions. The admission plugins are in
//! `crowsnest-admission-plugins`.

pub mod status;
#[cfg(test)]
mod tests;
mod type_checking;
