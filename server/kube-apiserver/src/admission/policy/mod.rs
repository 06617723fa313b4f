//! Status of ValidatingAdmissionPolicies: type checking warnings about their expressions. The admission plugins that
//! evaluate policies are in `crowsnest-admission-plugins`.

pub mod status;
#[cfg(test)]
mod tests;
mod type_checking;
