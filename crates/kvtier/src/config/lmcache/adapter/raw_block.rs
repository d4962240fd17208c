//! LMCache's checks of a `raw_block` object. Files have neither slots nor blocks, but an object that
//! LMCache rejects is rejected here too.

use super::fields::AdapterFields;
use crate::config::value::Value;

pub(super) fn check(fields: &AdapterFields, object: &[(String, Value)]) -> Result<(), String> {
    let given =
        |name: &str| object.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value);
    if given("per_tp_device_paths").is_some() {
        return Err("per_tp_device_paths has no meaning in multi-process mode".into());
    }
    if !fields.is_on("persist_enabled") {
        return Err("persist_enabled must be true: what is written stays".into());
    }
    let slot = fields.int("slot_bytes");
    let align = fields.int("block_align");
    let header = fields.int("header_bytes");
    if !align.cast_unsigned().is_power_of_two() {
        return Err(format!("block_align {align} is no power of 2"));
    }
    if slot % align != 0 {
        return Err(format!("slot_bytes {slot} is no multiple of block_align {align}"));
    }
    if slot <= header {
        return Err(format!("slot_bytes {slot} leaves no space after header_bytes {header}"));
    }
    let capacity = fields.int("capacity_bytes");
    let meta = fields.int("meta_total_bytes");
    if capacity > 0 && capacity - meta < slot {
        return Err(format!(
            "capacity_bytes {capacity} leaves no space for a single slot after meta_total_bytes {meta}"
        ));
    }
    engine(
        fields,
        given("use_iouring").or_else(|| given("use_uring")).is_some_and(Value::is_truthy),
    )
}

fn engine(fields: &AdapterFields, old_switch: bool) -> Result<(), String> {
    let name = fields.text("io_engine").unwrap_or("posix").to_lowercase();
    if !matches!(name.as_str(), "posix" | "io_uring") {
        return Err(format!("io_engine {name:?} is neither posix nor io_uring"));
    }
    let uring = old_switch || name == "io_uring";
    if fields.is_on("use_uring_cmd") && !uring {
        return Err("use_uring_cmd needs io_engine: io_uring".into());
    }
    if fields.is_on("fdp_enabled") && !(uring && fields.is_on("use_uring_cmd")) {
        return Err("fdp_enabled needs io_engine: io_uring and use_uring_cmd: true".into());
    }
    Ok(())
}
