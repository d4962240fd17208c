//! Runs kernels: reads PTX, as much of it as our kernels are written in, and does what it says, one thread after the other.

use std::collections::BTreeMap;

/// A kernel that was understood.
#[derive(Debug)]
pub struct Kernel {
    pub name: String,
    /// Bytes of each parameter.
    pub params: Vec<usize>,
    code: Vec<Op>,
    registers: usize,
}

/// What an instruction works with.
#[derive(Clone, Copy, Debug)]
enum Value {
    Register(usize),
    Number(u64),
    Block,
    BlockThreads,
    Thread,
}

/// An instruction; the first register is what it sets.
#[derive(Debug)]
enum Op {
    Param(usize, usize),
    Move(usize, Value),
    Add(usize, Value, Value, u64),
    Subtract(usize, Value, Value),
    MultiplyAdd(usize, [Value; 3], u64),
    Xor(usize, Value, Value),
    Not(usize, Value),
    Bits(usize, Value, Value, Value),
    IsAtLeast(usize, Value, Value),
    IsOther(usize, Value, Value),
    Load(Vec<usize>, Value, u64),
    Store(Value, u64, Value),
    /// To an instruction, if the register is set.
    Branch(Option<usize>, usize),
    Return,
}

/// The device's memory, in words.
pub trait Words {
    /// The word at an address; `None` where there is none.
    fn read(&mut self, at: u64) -> Option<u32>;
    /// Sets it.
    fn write(&mut self, at: u64, word: u32) -> Option<()>;
}

const WORD: u64 = u32::MAX as u64;
const LONG: u64 = u64::MAX;

/// Names, numbered in the order in which they come.
#[derive(Default)]
struct Names(BTreeMap<String, usize>);

impl Names {
    fn number(&mut self, name: &str) -> usize {
        let next = self.0.len();
        *self.0.entry(name.to_owned()).or_insert(next)
    }
}

impl Kernel {
    /// The one kernel of a module. The error names what is not understood.
    pub fn read(text: &str) -> Result<Self, String> {
        let text: String =
            text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
        let odd = || "no kernel".to_owned();
        let (_, entry) = text.split_once(".visible .entry").ok_or_else(odd)?;
        let (name, rest) = entry.split_once('(').ok_or_else(odd)?;
        let (params, rest) = rest.split_once(')').ok_or_else(odd)?;
        let (_, rest) = rest.split_once('{').ok_or_else(odd)?;
        // Braces inside are those of vectors.
        let (body, _) = rest.rsplit_once('}').ok_or_else(odd)?;
        let (mut names, mut registers) = (Names::default(), Names::default());
        let params = params.split(',').map(|param| parameter(param, &mut names)).collect::<Result<Vec<_>, _>>()?;
        let (lines, labels) = lines(body);
        let mut reader = Reader { names: &mut names, registers: &mut registers, labels: &labels };
        let code = lines.iter().map(|line| reader.op(line)).collect::<Result<_, _>>()?;
        Ok(Kernel { name: name.trim().to_owned(), params, code, registers: registers.0.len() })
    }

    /// Runs all threads. `None` when one touched memory that is not there.
    pub fn run(&self, (blocks, threads): (u32, u32), params: &[u64], words: &mut impl Words) -> Option<()> {
        for block in 0..blocks {
            (0..threads).try_for_each(|thread| self.thread([block, threads, thread], params, words))?;
        }
        Some(())
    }

    fn thread(&self, [block, threads, thread]: [u32; 3], params: &[u64], words: &mut impl Words) -> Option<()> {
        let (mut set, mut next) = (vec![0_u64; self.registers], 0);
        loop {
            let get = |value: Value| match value {
                Value::Register(n) => set[n],
                Value::Number(n) => n,
                Value::Block => block.into(),
                Value::BlockThreads => threads.into(),
                Value::Thread => thread.into(),
            };
            let op = self.code.get(next)?;
            next += 1;
            let (to, result) = match op {
                Op::Param(to, n) => (*to, *params.get(*n)?),
                Op::Move(to, from) => (*to, get(*from)),
                Op::Add(to, a, b, mask) => (*to, get(*a).wrapping_add(get(*b)) & mask),
                Op::Subtract(to, a, b) => (*to, get(*a).wrapping_sub(get(*b)) & WORD),
                Op::MultiplyAdd(to, [a, b, c], mask) => {
                    (*to, get(*a).wrapping_mul(get(*b)).wrapping_add(get(*c)) & mask)
                }
                Op::Xor(to, a, b) => (*to, get(*a) ^ get(*b)),
                Op::Not(to, a) => (*to, !get(*a) & WORD),
                Op::Bits(to, a, at, len) => (*to, get(*a) >> get(*at) & ((1 << get(*len)) - 1)),
                Op::IsAtLeast(to, a, b) => (*to, (get(*a) >= get(*b)).into()),
                Op::IsOther(to, a, b) => (*to, (get(*a) != get(*b)).into()),
                Op::Load(to, base, offset) => {
                    let at = get(*base).wrapping_add(*offset);
                    // As a GPU demands it of a vector.
                    if !at.is_multiple_of(4 * to.len() as u64) {
                        return None;
                    }
                    for (n, to) in to.iter().enumerate() {
                        set[*to] = words.read(at + 4 * n as u64)?.into();
                    }
                    continue;
                }
                Op::Store(base, offset, from) => {
                    words.write(get(*base).wrapping_add(*offset), get(*from) as u32)?;
                    continue;
                }
                Op::Branch(when, to) => {
                    if when.is_none_or(|when| set[when] != 0) {
                        next = *to;
                    }
                    continue;
                }
                Op::Return => return Some(()),
            };
            set[to] = result;
        }
    }
}

fn parameter(text: &str, names: &mut Names) -> Result<usize, String> {
    let words: Vec<_> = text.split_whitespace().collect();
    let [".param", kind, name] = words[..] else { return Err(format!("parameter {text:?}")) };
    names.number(name);
    match kind {
        ".u64" => Ok(8),
        ".u32" => Ok(4),
        _ => Err(format!("kind {kind} of parameter {name}")),
    }
}

/// The instructions, without declarations, and where the labels lead.
fn lines(body: &str) -> (Vec<&str>, BTreeMap<&str, usize>) {
    let (mut lines, mut labels) = (Vec::new(), BTreeMap::new());
    for statement in body.split(';') {
        let mut statement = statement.trim();
        while let Some((label, rest)) = statement.split_once(':') {
            labels.insert(label.trim(), lines.len());
            statement = rest.trim();
        }
        if !statement.is_empty() && !statement.starts_with(".reg") {
            lines.push(statement);
        }
    }
    (lines, labels)
}

struct Reader<'a> {
    names: &'a mut Names,
    registers: &'a mut Names,
    labels: &'a BTreeMap<&'a str, usize>,
}

impl Reader<'_> {
    fn op(&mut self, line: &str) -> Result<Op, String> {
        self.understood(line).ok_or_else(|| format!("not understood: {line}"))
    }

    fn understood(&mut self, line: &str) -> Option<Op> {
        let (when, line) = match line.strip_prefix('@') {
            Some(rest) => {
                let (when, line) = rest.split_once(' ')?;
                (Some(self.register(when)?), line.trim())
            }
            None => (None, line),
        };
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let ("bra", Some(to)) = (name, self.labels.get(rest.trim())) {
            return Some(Op::Branch(when, *to));
        }
        if when.is_some() {
            return None;
        }
        let args = arguments(rest);
        match (name, &args.iter().map(String::as_str).collect::<Vec<_>>()[..]) {
            ("ret", []) => Some(Op::Return),
            ("ld.param.u32" | "ld.param.u64", [to, from]) => {
                let name = from.strip_prefix('[')?.strip_suffix(']')?;
                Some(Op::Param(self.register(to)?, *self.names.0.get(name)?))
            }
            ("ld.global.v4.u32", [to, from]) => {
                let to = to.strip_prefix('{')?.strip_suffix('}')?;
                let to: Vec<_> = to.split(',').map(|to| self.register(to.trim())).collect::<Option<_>>()?;
                let (base, offset) = self.place(from)?;
                (to.len() == 4).then_some(Op::Load(to, base, offset))
            }
            ("ld.global.u32" | "ld.global.nc.u32", [to, from]) => {
                let (base, offset) = self.place(from)?;
                Some(Op::Load(vec![self.register(to)?], base, offset))
            }
            ("st.global.u32", [to, from]) => {
                let (base, offset) = self.place(to)?;
                Some(Op::Store(base, offset, self.value(from)?))
            }
            // One space of addresses serves all.
            ("mov.u32" | "cvta.to.global.u64", [to, a]) => Some(Op::Move(self.register(to)?, self.value(a)?)),
            ("not.b32", [to, a]) => Some(Op::Not(self.register(to)?, self.value(a)?)),
            (_, [to, a, rest @ ..]) => {
                let (to, a) = (self.register(to)?, self.value(a)?);
                let rest: Vec<_> = rest.iter().map(|arg| self.value(arg)).collect::<Option<_>>()?;
                match (name, &rest[..]) {
                    ("add.u64", [b]) => Some(Op::Add(to, a, *b, LONG)),
                    ("add.u32", [b]) => Some(Op::Add(to, a, *b, WORD)),
                    ("sub.u32", [b]) => Some(Op::Subtract(to, a, *b)),
                    ("xor.b32", [b]) => Some(Op::Xor(to, a, *b)),
                    ("setp.ge.u32", [b]) => Some(Op::IsAtLeast(to, a, *b)),
                    ("setp.ne.u32", [b]) => Some(Op::IsOther(to, a, *b)),
                    ("mad.lo.u32", [b, c]) => Some(Op::MultiplyAdd(to, [a, *b, *c], WORD)),
                    ("mad.wide.u32", [b, c]) => Some(Op::MultiplyAdd(to, [a, *b, *c], LONG)),
                    ("bfe.u32", [at, len]) => Some(Op::Bits(to, a, *at, *len)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn register(&mut self, name: &str) -> Option<usize> {
        name.starts_with('%').then(|| self.registers.number(name))
    }

    fn value(&mut self, text: &str) -> Option<Value> {
        match text {
            "%ctaid.x" => Some(Value::Block),
            "%ntid.x" => Some(Value::BlockThreads),
            "%tid.x" => Some(Value::Thread),
            _ if text.starts_with('%') => Some(Value::Register(self.register(text)?)),
            _ => number(text).map(Value::Number),
        }
    }

    /// `[base]` or `[base+offset]`.
    fn place(&mut self, text: &str) -> Option<(Value, u64)> {
        let text = text.strip_prefix('[')?.strip_suffix(']')?;
        let (base, offset) = text.split_once('+').unwrap_or((text, "0"));
        Some((self.value(base.trim())?, number(offset.trim())?))
    }
}

fn number(text: &str) -> Option<u64> {
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| u64::from_str_radix(hex, 16).ok())
}

/// Cut at commas, but for those in braces.
fn arguments(text: &str) -> Vec<String> {
    let mut arguments = vec![String::new()];
    let mut inside = false;
    for c in text.chars() {
        inside = (inside || c == '{') && c != '}';
        match c {
            ',' if !inside => arguments.push(String::new()),
            _ => arguments.last_mut().expect("there is one from the start").push(c),
        }
    }
    let arguments = arguments.into_iter().map(|argument| argument.trim().to_owned());
    arguments.filter(|argument| !argument.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Memory(Vec<u32>);

    impl Words for Memory {
        fn read(&mut self, at: u64) -> Option<u32> {
            self.0.get(at as usize / 4).copied()
        }

        fn write(&mut self, at: u64, word: u32) -> Option<()> {
            *self.0.get_mut(at as usize / 4)? = word;
            Some(())
        }
    }

    fn kernel(body: &str) -> Result<Kernel, String> {
        Kernel::read(&format!(
            ".version 7.0\n.visible .entry k(\n .param .u64 at,\n .param .u32 n // how many\n)\n{{\n .reg .u32 %a;\n{body}\n}}\n"
        ))
    }

    #[test]
    fn every_thread_does_what_the_text_says() {
        let text = "mov.u32 %i, %ctaid.x; mov.u32 %b, %ntid.x; mov.u32 %t, %tid.x; mad.lo.u32 %i, %i, %b, %t;
            ld.param.u32 %n, [n]; setp.ge.u32 %p, %i, %n; @%p bra END; ld.param.u64 %at, [at]; mad.wide.u32 %at, %i, 16, %at;
            mov.u32 %sum, 0; mov.u32 %left, 2;
            NEXT: ld.global.v4.u32 {%w, %x, %y, %z}, [%at]; xor.b32 %w, %w, %x; bfe.u32 %y, %y, 4, 8; add.u32 %sum, %sum, %w;
            add.u32 %sum, %sum, %y; sub.u32 %left, %left, 1; setp.ne.u32 %p, %left, 0; @%p bra NEXT;
            not.b32 %sum, %sum; st.global.u32 [%at+12], %sum; END: ret;";
        let kernel = kernel(text).unwrap();
        assert_eq!((kernel.name.as_str(), &kernel.params[..]), ("k", &[8, 4][..]));
        let mut memory = Memory((0..16).map(|n| n * 0x111).collect());
        kernel.run((2, 2), &[0, 3], &mut memory).unwrap();
        let sum = |n: u32| !(2 * (((n * 0x111) ^ ((n + 1) * 0x111)) + (((n + 2) * 0x111) >> 4 & 255)));
        assert_eq!([3, 7, 11, 15].map(|n| memory.0[n]), [sum(0), sum(4), sum(8), 15 * 0x111]);
        assert_eq!(kernel.run((3, 2), &[0, 6], &mut memory), None, "memory that is not there");
        assert_eq!(kernel.run((1, 1), &[4, 1], &mut memory), None, "a vector that is not aligned");
    }

    #[test]
    fn what_is_not_understood_is_said() {
        assert_eq!(kernel("sqrt.f32 %a, %b;").unwrap_err(), "not understood: sqrt.f32 %a, %b");
        assert_eq!(kernel("bra NOWHERE;").unwrap_err(), "not understood: bra NOWHERE");
        assert!(Kernel::read("no text of a module").is_err());
    }
}
