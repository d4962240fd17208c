//! Interprets kernels in PTX, one thread after the other, as far as kvtier's kernels need it.
//!
//! Code that NVIDIA's assembler refuses (registers that are undeclared or of another type) is refused
//! here too. A register that was never set has any value on a GPU; here it ends the kernel.

use std::collections::BTreeMap;

/// A parsed kernel.
#[derive(Debug)]
pub struct Kernel {
    pub name: String,
    /// Bytes of each parameter.
    pub params: Vec<usize>,
    code: Vec<Op>,
    registers: usize,
}

/// An operand.
#[derive(Clone, Copy, Debug)]
enum Value {
    Register(usize),
    Number(u64),
    Block,
    BlockThreads,
    Thread,
}

/// An instruction; the first register is its destination.
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
    /// Jumps to an instruction; with a register, only if that is not 0.
    Branch(Option<usize>, usize),
    Return,
}

/// Device memory in words.
pub trait Words {
    /// The word at an address; `None` for unmapped memory.
    fn read(&mut self, at: u64) -> Option<u32>;
    /// Sets the word at an address; `None` for unmapped memory.
    fn write(&mut self, at: u64, word: u32) -> Option<()>;
}

const WORD: u64 = u32::MAX as u64;
const LONG: u64 = u64::MAX;

/// The type of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bit,
    Word,
    Long,
}

/// Names: their numbers, in the order in which they come, and what they are names of.
type Names<'a, T> = BTreeMap<&'a str, (usize, T)>;

impl Kernel {
    /// Parses the single kernel of a module. The error names the code that is not supported.
    pub fn read(text: &str) -> Result<Self, String> {
        let text: String = text
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default())
            .collect::<Vec<_>>()
            .join("\n");
        let odd = || "no kernel".to_owned();
        let (_, entry) = text.split_once(".visible .entry").ok_or_else(odd)?;
        // Name, parameters, body: a module of ours has one kernel and nothing behind it.
        let (name, rest) = entry.split_once('(').ok_or_else(odd)?;
        let (params, rest) = rest.split_once(')').ok_or_else(odd)?;
        let (_, rest) = rest.split_once('{').ok_or_else(odd)?;
        // Inner braces are those of vectors.
        let (body, _) = rest.rsplit_once('}').ok_or_else(odd)?;
        let params = params.split(',').map(parameter).collect::<Result<Vec<_>, _>>()?;
        let names =
            params.iter().enumerate().map(|(n, (name, bytes))| (*name, (n, *bytes))).collect();
        let (lines, labels, registers) = lines(body)?;
        let reader = Reader { params: names, registers, labels };
        let code = lines.iter().map(|line| reader.op(line)).collect::<Result<_, _>>()?;
        let params = params.into_iter().map(|(_, bytes)| bytes).collect();
        Ok(Kernel { name: name.trim().to_owned(), params, code, registers: reader.registers.len() })
    }

    /// Runs all threads. `None` if one accessed unmapped memory or used a register that was not set.
    pub fn run(
        &self,
        blocks: u32,
        threads: u32,
        params: &[u64],
        words: &mut impl Words,
    ) -> Option<()> {
        // One after the other: our kernels have no barriers and share no memory, so the order does
        // not show.
        for block in 0..blocks {
            (0..threads)
                .try_for_each(|thread| self.thread([block, threads, thread], params, words))?;
        }
        Some(())
    }

    fn thread(
        &self,
        [block, threads, thread]: [u32; 3],
        params: &[u64],
        words: &mut impl Words,
    ) -> Option<()> {
        // `None` until it is set, see the module's head.
        let mut set = vec![None::<u64>; self.registers];
        let mut next = 0;
        loop {
            let get = |value: Value| match value {
                Value::Register(n) => set[n],
                Value::Number(n) => Some(n),
                Value::Block => Some(block.into()),
                Value::BlockThreads => Some(threads.into()),
                Value::Thread => Some(thread.into()),
            };
            // Behind the last instruction without `ret`: undefined on a GPU, a failed launch here.
            let op = self.code.get(next)?;
            next += 1;
            let (to, result) = match op {
                Op::Param(to, n) => (*to, *params.get(*n)?),
                Op::Move(to, from) => (*to, get(*from)?),
                Op::Add(to, a, b, mask) => (*to, get(*a)?.wrapping_add(get(*b)?) & mask),
                Op::Subtract(to, a, b) => (*to, get(*a)?.wrapping_sub(get(*b)?) & WORD),
                Op::MultiplyAdd(to, [a, b, c], mask) => {
                    (*to, get(*a)?.wrapping_mul(get(*b)?).wrapping_add(get(*c)?) & mask)
                }
                Op::Xor(to, a, b) => (*to, get(*a)? ^ get(*b)?),
                Op::Not(to, a) => (*to, !get(*a)? & WORD),
                Op::Bits(to, a, at, len) => (*to, get(*a)? >> get(*at)? & ((1 << get(*len)?) - 1)),
                Op::IsAtLeast(to, a, b) => (*to, (get(*a)? >= get(*b)?).into()),
                Op::IsOther(to, a, b) => (*to, (get(*a)? != get(*b)?).into()),
                Op::Load(to, base, offset) => {
                    let at = get(*base)?.wrapping_add(*offset);
                    // A GPU requires this alignment of a vector.
                    if !at.is_multiple_of(4 * to.len() as u64) {
                        return None;
                    }
                    for (n, to) in to.iter().enumerate() {
                        set[*to] = Some(words.read(at + 4 * n as u64)?.into());
                    }
                    continue;
                }
                Op::Store(base, offset, from) => {
                    words.write(get(*base)?.wrapping_add(*offset), get(*from)? as u32)?;
                    continue;
                }
                Op::Branch(when, to) => {
                    let goes = match when {
                        Some(when) => set[*when]? != 0,
                        None => true,
                    };
                    if goes {
                        next = *to;
                    }
                    continue;
                }
                Op::Return => return Some(()),
            };
            // All that is left are instructions with one destination; the others went on above.
            set[to] = Some(result);
        }
    }
}

/// Name and bytes of a parameter.
fn parameter(text: &str) -> Result<(&str, usize), String> {
    let words: Vec<_> = text.split_whitespace().collect();
    let [".param", kind, name] = words[..] else { return Err(format!("parameter {text:?}")) };
    match kind {
        ".u64" => Ok((name, 8)),
        ".u32" => Ok((name, 4)),
        _ => Err(format!("kind {kind} of parameter {name}")),
    }
}

/// The instructions, the targets of labels, and the declared registers.
type Lines<'a> = (Vec<&'a str>, BTreeMap<&'a str, usize>, Names<'a, Kind>);

fn lines(body: &str) -> Result<Lines<'_>, String> {
    let mut lines = Vec::new();
    let mut labels = BTreeMap::new();
    let mut registers = Names::new();
    for statement in body.split(';') {
        let mut statement = statement.trim();
        // A label stands before the instruction that it names, so its target is the next line.
        while let Some((label, rest)) = statement.split_once(':') {
            labels.insert(label.trim(), lines.len());
            statement = rest.trim();
        }
        if let Some(declared) = statement.strip_prefix(".reg ") {
            let odd = || format!("not understood: {statement}");
            let (kind, names) = declared.trim().split_once(' ').ok_or_else(odd)?;
            let kinds = [(".pred", Kind::Bit), (".u32", Kind::Word), (".u64", Kind::Long)];
            let (_, kind) = kinds.into_iter().find(|(name, _)| *name == kind).ok_or_else(odd)?;
            for name in names.split(',').map(str::trim) {
                // Numbered over all kinds: the kind is checked here once, and not while the kernel
                // runs.
                let number = registers.len();
                // NVIDIA's assembler refuses a second declaration too.
                if registers.insert(name, (number, kind)).is_some() {
                    return Err(odd());
                }
            }
        } else if !statement.is_empty() {
            lines.push(statement);
        }
    }
    Ok((lines, labels, registers))
}

struct Reader<'a> {
    /// How many bytes each has.
    params: Names<'a, usize>,
    registers: Names<'a, Kind>,
    labels: BTreeMap<&'a str, usize>,
}

impl Reader<'_> {
    fn op(&self, line: &str) -> Result<Op, String> {
        self.understood(line).ok_or_else(|| format!("not understood: {line}"))
    }

    // tidy: allow(fn-lines): one arm an instruction
    fn understood(&self, line: &str) -> Option<Op> {
        let (when, line) = match line.strip_prefix('@') {
            Some(rest) => {
                let (when, line) = rest.split_once(' ')?;
                (Some(self.register(when, Kind::Bit)?), line.trim())
            }
            None => (None, line),
        };
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let ("bra", Some(to)) = (name, self.labels.get(rest.trim())) {
            return Some(Op::Branch(when, *to));
        }
        // Predicates are supported on branches only, which is all that our kernels use.
        if when.is_some() {
            return None;
        }
        let args = arguments(rest);
        match (name, &args.iter().map(String::as_str).collect::<Vec<_>>()[..]) {
            ("ret", []) => Some(Op::Return),
            ("ld.param.u32", [to, from]) => {
                Some(Op::Param(self.register(to, Kind::Word)?, self.param(from, 4)?))
            }
            ("ld.param.u64", [to, from]) => {
                Some(Op::Param(self.register(to, Kind::Long)?, self.param(from, 8)?))
            }
            ("ld.global.v4.u32", [to, from]) => {
                let to = to.strip_prefix('{')?.strip_suffix('}')?;
                let to: Vec<_> = to
                    .split(',')
                    .map(|to| self.register(to.trim(), Kind::Word))
                    .collect::<Option<_>>()?;
                let (base, offset) = self.place(from)?;
                // `v4` without four registers is an error of the assembler.
                (to.len() == 4).then_some(Op::Load(to, base, offset))
            }
            ("ld.global.u32" | "ld.global.nc.u32", [to, from]) => {
                let (base, offset) = self.place(from)?;
                Some(Op::Load(vec![self.register(to, Kind::Word)?], base, offset))
            }
            ("st.global.u32", [to, from]) => {
                let (base, offset) = self.place(to)?;
                Some(Op::Store(base, offset, self.value(from, Kind::Word)?))
            }
            // All address spaces are one.
            ("cvta.to.global.u64", [to, a]) => {
                Some(Op::Move(self.register(to, Kind::Long)?, self.value(a, Kind::Long)?))
            }
            ("add.u64", [to, a, b]) => {
                let [a, b] = [self.value(a, Kind::Long)?, self.value(b, Kind::Long)?];
                Some(Op::Add(self.register(to, Kind::Long)?, a, b, LONG))
            }
            ("mad.wide.u32", [to, a, b, c]) => {
                let all = [
                    self.value(a, Kind::Word)?,
                    self.value(b, Kind::Word)?,
                    self.value(c, Kind::Long)?,
                ];
                Some(Op::MultiplyAdd(self.register(to, Kind::Long)?, all, LONG))
            }
            ("setp.ge.u32" | "setp.ne.u32", [to, a, b]) => {
                let to = self.register(to, Kind::Bit)?;
                let a = self.value(a, Kind::Word)?;
                let b = self.value(b, Kind::Word)?;
                Some(if name == "setp.ge.u32" {
                    Op::IsAtLeast(to, a, b)
                } else {
                    Op::IsOther(to, a, b)
                })
            }
            (_, [to, rest @ ..]) => {
                let to = self.register(to, Kind::Word)?;
                let rest: Vec<_> =
                    rest.iter().map(|arg| self.value(arg, Kind::Word)).collect::<Option<_>>()?;
                of_words(name, to, &rest)
            }
            _ => None,
        }
    }

    fn param(&self, text: &str, bytes: usize) -> Option<usize> {
        let name = text.strip_prefix('[')?.strip_suffix(']')?;
        self.params.get(name).filter(|(_, own)| *own == bytes).map(|(n, _)| *n)
    }

    fn register(&self, name: &str, kind: Kind) -> Option<usize> {
        self.registers.get(name).filter(|(_, own)| *own == kind).map(|(n, _)| *n)
    }

    fn value(&self, text: &str, kind: Kind) -> Option<Value> {
        match text {
            "%ctaid.x" if kind == Kind::Word => Some(Value::Block),
            "%ntid.x" if kind == Kind::Word => Some(Value::BlockThreads),
            "%tid.x" if kind == Kind::Word => Some(Value::Thread),
            _ if text.starts_with('%') => self.register(text, kind).map(Value::Register),
            // A number must fit into the type of the instruction.
            _ => number(text).filter(|n| kind == Kind::Long || *n <= WORD).map(Value::Number),
        }
    }

    /// `[base]` or `[base+offset]`.
    fn place(&self, text: &str) -> Option<(Value, u64)> {
        let text = text.strip_prefix('[')?.strip_suffix(']')?;
        let (base, offset) = text.split_once('+').unwrap_or((text, "0"));
        Some((self.value(base.trim(), Kind::Long)?, number(offset.trim())?))
    }
}

/// An instruction all of whose operands are words.
fn of_words(name: &str, to: usize, rest: &[Value]) -> Option<Op> {
    match (name, rest) {
        ("mov.u32", [a]) => Some(Op::Move(to, *a)),
        ("not.b32", [a]) => Some(Op::Not(to, *a)),
        ("add.u32", [a, b]) => Some(Op::Add(to, *a, *b, WORD)),
        ("sub.u32", [a, b]) => Some(Op::Subtract(to, *a, *b)),
        ("xor.b32", [a, b]) => Some(Op::Xor(to, *a, *b)),
        ("mad.lo.u32", [a, b, c]) => Some(Op::MultiplyAdd(to, [*a, *b, *c], WORD)),
        ("bfe.u32", [a, at, len]) => Some(Op::Bits(to, *a, *at, *len)),
        _ => None,
    }
}

fn number(text: &str) -> Option<u64> {
    text.strip_prefix("0x")
        .map_or_else(|| text.parse().ok(), |hex| u64::from_str_radix(hex, 16).ok())
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
            ".version 7.0\n.visible .entry k(\n .param .u64 at,\n .param .u32 n // how many\n)\n{{\n .reg .pred %p;\n .reg .u32 %a, %b, %i, %t, %n, %sum, %left, %w, %x, %y, %z;\n .reg .u64 %at;\n{body}\n}}\n"
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
        kernel.run(2, 2, &[0, 3], &mut memory).unwrap();
        let sum =
            |n: u32| !(2 * (((n * 0x111) ^ ((n + 1) * 0x111)) + (((n + 2) * 0x111) >> 4 & 255)));
        assert_eq!([3, 7, 11, 15].map(|n| memory.0[n]), [sum(0), sum(4), sum(8), 15 * 0x111]);
        assert_eq!(kernel.run(3, 2, &[0, 6], &mut memory), None, "memory that is not there");
        assert_eq!(kernel.run(1, 1, &[4, 1], &mut memory), None, "a vector that is not aligned");
    }

    #[test]
    fn a_register_that_was_never_set_ends_the_kernel() {
        for text in
            ["mov.u32 %a, %b; ret;", "@%p bra END; END: ret;", "st.global.u32 [%at], 1; ret;"]
        {
            assert_eq!(
                kernel(text).unwrap().run(1, 1, &[0, 0], &mut Memory(vec![0; 4])),
                None,
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_not_understood_is_said() {
        assert_eq!(kernel("sqrt.f32 %a, %b;").unwrap_err(), "not understood: sqrt.f32 %a, %b");
        assert_eq!(kernel("bra NOWHERE;").unwrap_err(), "not understood: bra NOWHERE");
        for wrong in [
            "mov.u32 %c, 1",
            "mov.u32 %at, 1",
            "mov.u32 %a, 0x100000000",
            "add.u64 %at, %at, %a",
            "mad.wide.u32 %at, %a, 4, %b",
            "ld.param.u64 %at, [n]",
            "ld.param.u32 %a, [at]",
            "ld.global.u32 %a, [%b]",
            "setp.ne.u32 %a, %a, 0",
            "@%a bra HERE",
            ".reg .u32 %p",
        ] {
            assert_eq!(
                kernel(&format!("HERE: {wrong};")).unwrap_err(),
                format!("not understood: {wrong}")
            );
        }
        assert!(Kernel::read("no text of a module").is_err());
    }
}
