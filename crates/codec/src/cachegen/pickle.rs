//! Reads the pickle of LMCache's CacheGen container: exactly the opcodes and globals that Python
//! writes there. Nothing is called or imported, and a value is only what the container can have.
//!
//! Texts and bytes are borrowed from the input. The numbers of values, of items in all of them
//! together and of a dictionary's pairs are limited, so memory and time are too.

use crate::{Error, ErrorKind};

// Values, and items of tuples, lists and dictionaries. A chunk of 256 tokens makes less than 30 of
// each; this is enough for 500,000 tokens.
const VALUES_MAX: usize = 1 << 16;

// An encoded chunk has 6 fields.
const PAIRS_MAX: usize = 8;

/// The classes and functions that the container names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Global {
    EncoderOutput,
    Bytestream,
    RebuildTensor,
    LoadFromBytes,
    OrderedDict,
}

/// Module, name and what they stand for.
pub(super) const GLOBALS: [(&str, &str, Global); 5] = [
    (
        "lmcache.storage_backend.serde.cachegen_basics",
        "CacheGenGPUEncoderOutput",
        Global::EncoderOutput,
    ),
    ("lmcache.storage_backend.serde.cachegen_basics", "CacheGenGPUBytestream", Global::Bytestream),
    ("torch._utils", "_rebuild_tensor_v2", Global::RebuildTensor),
    ("torch.storage", "_load_from_bytes", Global::LoadFromBytes),
    ("collections", "OrderedDict", Global::OrderedDict),
];

/// The opcodes that occur, by the names of Python's `pickletools`.
pub(super) mod op {
    pub(in super::super) const PROTO: u8 = 0x80;
    pub(in super::super) const FRAME: u8 = 0x95;
    pub(in super::super) const STOP: u8 = b'.';
    pub(in super::super) const MARK: u8 = b'(';
    pub(in super::super) const SHORT_BINUNICODE: u8 = 0x8c;
    pub(in super::super) const MEMOIZE: u8 = 0x94;
    pub(in super::super) const BINGET: u8 = b'h';
    pub(in super::super) const LONG_BINGET: u8 = b'j';
    pub(in super::super) const STACK_GLOBAL: u8 = 0x93;
    pub(in super::super) const EMPTY_TUPLE: u8 = b')';
    pub(in super::super) const TUPLE1: u8 = 0x85;
    pub(in super::super) const TUPLE2: u8 = 0x86;
    pub(in super::super) const TUPLE3: u8 = 0x87;
    pub(in super::super) const TUPLE: u8 = b't';
    pub(in super::super) const EMPTY_LIST: u8 = b']';
    pub(in super::super) const APPEND: u8 = b'a';
    pub(in super::super) const APPENDS: u8 = b'e';
    pub(in super::super) const EMPTY_DICT: u8 = b'}';
    pub(in super::super) const SETITEMS: u8 = b'u';
    pub(in super::super) const NEWOBJ: u8 = 0x81;
    pub(in super::super) const REDUCE: u8 = b'R';
    pub(in super::super) const BUILD: u8 = b'b';
    pub(in super::super) const NEWFALSE: u8 = 0x89;
    pub(in super::super) const BININT1: u8 = b'K';
    pub(in super::super) const BININT2: u8 = b'M';
    pub(in super::super) const BININT: u8 = b'J';
    pub(in super::super) const LONG1: u8 = 0x8a;
    pub(in super::super) const SHORT_BINBYTES: u8 = b'C';
    pub(in super::super) const BINBYTES: u8 = b'B';
    pub(in super::super) const BINBYTES8: u8 = 0x8e;
}

/// The number of a value in its [`Pickle`].
pub(super) type Ref = usize;

/// A value of the container.
#[derive(Debug)]
pub(super) enum Value<'a> {
    False,
    Int(u64),
    Text(&'a str),
    Bytes(&'a [u8]),
    Tuple(Vec<Ref>),
    List(Vec<Ref>),
    Dict(Vec<(Ref, Ref)>),
    Global(Global),
    /// An object of a class, with the dictionary of its fields once it is built.
    Object(Global, Option<Ref>),
    /// A function with the tuple of its arguments.
    Call(Global, Ref),
}

/// A pickle that was read.
#[derive(Debug)]
pub(super) struct Pickle<'a> {
    values: Vec<Value<'a>>,
    root: Ref,
}

impl<'a> Pickle<'a> {
    /// Reads all of `bytes`. Errors: `Corrupt`.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, Error> {
        let mut reader = Reader {
            input: Input { bytes, at: 0 },
            values: vec![],
            stack: vec![],
            marks: vec![],
            memo: vec![],
            items: 0,
        };
        let root = reader.run()?;
        Ok(Pickle { values: reader.values, root })
    }

    pub(super) fn root(&self) -> Ref {
        self.root
    }

    pub(super) fn get(&self, value: Ref) -> &Value<'a> {
        &self.values[value]
    }
}

pub(super) fn corrupt(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, format!("no CacheGen container: {}", why.into()))
}

/// Bytes that are read from the front.
#[derive(Debug)]
pub(super) struct Input<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Input<'a> {
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let end = self.at.checked_add(len);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken =
            taken.ok_or_else(|| corrupt(format!("it ends after {} bytes", self.bytes.len())))?;
        self.at += len;
        Ok(taken)
    }

    /// A number of up to 8 bytes, the lowest first.
    pub(super) fn number(&mut self, len: usize) -> Result<u64, Error> {
        Ok(self.take(len)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    pub(super) fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn bytes(&mut self, len_bytes: usize) -> Result<&'a [u8], Error> {
        let len = self.number(len_bytes)?;
        self.take(usize::try_from(len).unwrap_or(usize::MAX))
    }

    pub(super) fn text(&mut self, len_bytes: usize) -> Result<&'a str, Error> {
        std::str::from_utf8(self.bytes(len_bytes)?).map_err(|_| corrupt("a text is no UTF-8"))
    }

    /// The rest of an opcode that gives an integer; negative ones do not occur.
    pub(super) fn integer(&mut self, opcode: u8) -> Result<u64, Error> {
        let (value, bits) = match opcode {
            op::BININT1 => return self.number(1),
            op::BININT2 => return self.number(2),
            op::BININT => (self.number(4)?, 32),
            op::LONG1 => match self.byte()? {
                len @ 1..=8 => (self.number(len.into())?, u32::from(len) * 8),
                len => return Err(corrupt(format!("an integer of {len} bytes"))),
            },
            other => return Err(corrupt(format!("opcode {other:#04x} is no integer"))),
        };
        if value >> (bits - 1) != 0 { Err(corrupt("a negative integer")) } else { Ok(value) }
    }
}

struct Reader<'a> {
    input: Input<'a>,
    values: Vec<Value<'a>>,
    stack: Vec<Ref>,
    marks: Vec<usize>,
    memo: Vec<Ref>,
    /// The items of all tuples, lists and dictionaries together.
    items: usize,
}

impl<'a> Reader<'a> {
    fn run(&mut self) -> Result<Ref, Error> {
        if self.input.byte()? != op::PROTO || !matches!(self.input.byte()?, 4 | 5) {
            return Err(corrupt("no pickle of protocol 4 or 5"));
        }
        loop {
            let opcode = self.input.byte()?;
            if opcode == op::STOP {
                break;
            }
            self.step(opcode)?;
        }
        if self.input.at != self.input.bytes.len() {
            return Err(corrupt("bytes follow its end"));
        }
        let root = self.pop()?;
        if self.stack.is_empty() && self.marks.is_empty() { Ok(root) } else { Err(misplaced()) }
    }

    fn step(&mut self, opcode: u8) -> Result<(), Error> {
        match opcode {
            op::FRAME => {
                // Frames only say how much a reader may fetch at once.
                let len = self.input.number(8)?;
                let rest = self.input.bytes.len() - self.input.at;
                if len > rest as u64 { Err(corrupt("a frame is cut off")) } else { Ok(()) }
            }
            op::MARK => {
                limit(self.marks.len())?;
                self.marks.push(self.stack.len());
                Ok(())
            }
            op::MEMOIZE => {
                limit(self.memo.len())?;
                let top = *self.stack.last().ok_or_else(misplaced)?;
                self.memo.push(top);
                Ok(())
            }
            op::BINGET => self.recall(1),
            op::LONG_BINGET => self.recall(4),
            op::SHORT_BINUNICODE => {
                let text = self.input.text(1)?;
                self.push(Value::Text(text))
            }
            op::SHORT_BINBYTES | op::BINBYTES | op::BINBYTES8 => {
                let len_bytes = match opcode {
                    op::SHORT_BINBYTES => 1,
                    op::BINBYTES => 4,
                    _ => 8,
                };
                let bytes = self.input.bytes(len_bytes)?;
                self.push(Value::Bytes(bytes))
            }
            op::BININT1 | op::BININT2 | op::BININT | op::LONG1 => {
                let value = self.input.integer(opcode)?;
                self.push(Value::Int(value))
            }
            op::NEWFALSE => self.push(Value::False),
            op::EMPTY_LIST => self.push(Value::List(vec![])),
            op::EMPTY_DICT => self.push(Value::Dict(vec![])),
            op::EMPTY_TUPLE => self.tuple(0),
            op::TUPLE1 => self.tuple(1),
            op::TUPLE2 => self.tuple(2),
            op::TUPLE3 => self.tuple(3),
            op::TUPLE => {
                let mark = self.marks.pop().ok_or_else(misplaced)?;
                self.tuple(self.stack.len().checked_sub(mark).ok_or_else(misplaced)?)
            }
            op::STACK_GLOBAL => self.global(),
            op::NEWOBJ => self.new_object(),
            op::REDUCE => self.call(),
            op::BUILD => self.build(),
            op::APPEND => self.append(1),
            op::APPENDS => {
                let mark = self.marks.pop().ok_or_else(misplaced)?;
                self.append(self.stack.len().checked_sub(mark).ok_or_else(misplaced)?)
            }
            op::SETITEMS => self.set_items(),
            other => Err(corrupt(format!("opcode {other:#04x} does not occur in one"))),
        }
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), Error> {
        limit(self.values.len())?;
        limit(self.stack.len())?;
        self.stack.push(self.values.len());
        self.values.push(value);
        Ok(())
    }

    /// Takes a value off the stack, not beyond the last mark.
    fn pop(&mut self) -> Result<Ref, Error> {
        if self.marks.last().is_some_and(|mark| self.stack.len() <= *mark) {
            return Err(misplaced());
        }
        self.stack.pop().ok_or_else(misplaced)
    }

    fn recall(&mut self, len: usize) -> Result<(), Error> {
        limit(self.stack.len())?;
        let index = self.input.number(len)? as usize;
        let value = *self.memo.get(index).ok_or_else(|| corrupt("a reference to no value"))?;
        self.stack.push(value);
        Ok(())
    }

    /// The last `len` values of the stack, which become items.
    fn take_last(&mut self, len: usize) -> Result<Vec<Ref>, Error> {
        let start = self.stack.len().checked_sub(len).ok_or_else(misplaced)?;
        self.items = self.items.saturating_add(len);
        limit(self.items)?;
        if self.marks.last().is_some_and(|mark| start < *mark) {
            return Err(misplaced());
        }
        Ok(self.stack.split_off(start))
    }

    fn tuple(&mut self, len: usize) -> Result<(), Error> {
        let items = self.take_last(len)?;
        self.push(Value::Tuple(items))
    }

    fn global(&mut self) -> Result<(), Error> {
        let (name, module) = (self.pop()?, self.pop()?);
        let (Value::Text(name), Value::Text(module)) = (&self.values[name], &self.values[module])
        else {
            return Err(misplaced());
        };
        let found = GLOBALS.iter().find(|entry| entry.0 == *module && entry.1 == *name);
        let global = found.ok_or_else(|| {
            corrupt(format!("it names {:?} of {:?}", shortened(name), shortened(module)))
        })?;
        self.push(Value::Global(global.2))
    }

    fn new_object(&mut self) -> Result<(), Error> {
        let (arguments, class) = (self.pop()?, self.pop()?);
        match (&self.values[class], &self.values[arguments]) {
            (
                Value::Global(class @ (Global::EncoderOutput | Global::Bytestream)),
                Value::Tuple(arguments),
            ) if arguments.is_empty() => {
                let class = *class;
                self.push(Value::Object(class, None))
            }
            _ => Err(misplaced()),
        }
    }

    fn call(&mut self) -> Result<(), Error> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        match (&self.values[function], &self.values[arguments]) {
            (
                Value::Global(
                    function
                    @ (Global::RebuildTensor | Global::LoadFromBytes | Global::OrderedDict),
                ),
                Value::Tuple(_),
            ) => {
                let function = *function;
                self.push(Value::Call(function, arguments))
            }
            _ => Err(misplaced()),
        }
    }

    fn build(&mut self) -> Result<(), Error> {
        let fields = self.pop()?;
        let object = *self.stack.last().ok_or_else(misplaced)?;
        if !matches!(self.values[fields], Value::Dict(_)) {
            return Err(misplaced());
        }
        match &mut self.values[object] {
            Value::Object(_, state @ None) => {
                *state = Some(fields);
                Ok(())
            }
            _ => Err(misplaced()),
        }
    }

    fn append(&mut self, len: usize) -> Result<(), Error> {
        let items = self.take_last(len)?;
        let list = *self.stack.last().ok_or_else(misplaced)?;
        match &mut self.values[list] {
            Value::List(list) => {
                list.extend(items);
                Ok(())
            }
            _ => Err(misplaced()),
        }
    }

    fn set_items(&mut self) -> Result<(), Error> {
        let mark = self.marks.pop().ok_or_else(misplaced)?;
        let items = self.take_last(self.stack.len().checked_sub(mark).ok_or_else(misplaced)?)?;
        let dict = *self.stack.last().ok_or_else(misplaced)?;
        match &mut self.values[dict] {
            Value::Dict(dict) if items.len().is_multiple_of(2) => {
                if dict.len() + items.len() / 2 > PAIRS_MAX {
                    return Err(corrupt(format!("an object of more than {PAIRS_MAX} fields")));
                }
                dict.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
                Ok(())
            }
            _ => Err(misplaced()),
        }
    }
}

fn limit(used: usize) -> Result<(), Error> {
    if used < VALUES_MAX { Ok(()) } else { Err(corrupt(format!("more than {VALUES_MAX} values"))) }
}

fn misplaced() -> Error {
    corrupt("an opcode stands where LMCache has another")
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}
