# Calls into C during which other threads may collect garbage. A collection waits for every thread that runs Julia code,
# and a thread in C counts as one that does. So without this a call that waits for another thread's, whose function in
# Julia (the IO of a save, the reward of a Hindsight) collects garbage, would never end. Julia has it from 1.12, as
# `@ccall gc_safe = true`.
#
# `call` is ccall(pointer, result, types, arguments...). Arguments are converted before and kept until after: in between
# nothing of Julia may run, except in gc_unsafe().
macro gc_safe(call)
    pointer, result, types, arguments = call.args[2], call.args[3], esc.(call.args[4].args), esc.(call.args[5:end])
    kept, given = [[gensym() for _ in arguments] for _ in 1:2]
    return quote
        pointer = $(esc(pointer))
        $((:($k = Base.cconvert($type, $argument)) for (k, type, argument) in zip(kept, types, arguments))...)
        GC.@preserve $(kept...) begin
            $((:($g = Base.unsafe_convert($type, $k)::$type) for (g, type, k) in zip(given, types, kept))...)
            state = ccall(:jl_gc_safe_enter, Int8, ())
            result = ccall(pointer, $(esc(result)), ($(types...),), $(given...))
            ccall(:jl_gc_safe_leave, Cvoid, (Int8,), state)
            result
        end
    end
end

# Runs action() in a function that C calls, and returns the Int64 or Int32 that it returns. The function itself must not
# touch objects of Julia: a collection may be running when it is called. `action` must not throw, as exceptions must not
# pass through C: what may throw, an interrupt too, is to run in interruptible().
function gc_unsafe(action)
    state = ccall(:jl_gc_unsafe_enter, Int8, ())
    status = without_inlining(action)
    ccall(:jl_gc_unsafe_leave, Cvoid, (Int8,), state)
    return status
end

# Inlined, its roots would be the function's.
@noinline without_inlining(action) = action()

# Runs action() with interrupts, which calling_back() defers.
interruptible(action) = reenable_sigint(action)

# The running calls into C that may call Julia.
const calls_with_functions = Threads.Atomic{Int}(0)

# Runs action(), a call into C that may call Julia. The task stays on its thread, by which the library recognises calls
# made from inside such a function. Interrupts wait: they would leave C by an exception.
function calling_back(action)
    task = current_task()
    was_sticky = task.sticky
    task.sticky = true
    Threads.atomic_add!(calls_with_functions, 1)
    try
        return disable_sigint(action)
    finally
        Threads.atomic_sub!(calls_with_functions, 1)
        task.sticky = was_sticky
    end
end

# Runs action() with a lock under which threads wait for those buffers in C. Inside a function that C calls for one of
# the buffers, such a thread would wait for this one: then this throws PER_ERROR_BUSY.
function locked(action, lock, buffers)
    calls_with_functions[] == 0 || foreach(buffer -> isopen(buffer) && options_now(buffer), buffers)
    return Base.lock(action, lock)
end
