import java.util.Arrays;

/** Runs the class that it is given, and reads by a null pointer again and again until that has ended. */
class Null {
    static volatile boolean ended;
    static int[] nothing;
    static long sum;

    static int read(int[] from) {
        return from.length;
    }

    static void run(String[] words) {
        try {
            var main = Class.forName(words[0]).getMethod("main", String[].class);
            main.invoke(null, (Object) Arrays.copyOfRange(words, 1, words.length));
        } catch (ReflectiveOperationException error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(3);
        }
        ended = true;
    }

    public static void main(String[] words) {
        var count = new long[1];
        Runtime.getRuntime().addShutdownHook(new Thread(() -> System.out.println(count[0] + " null pointers")));
        var something = new int[4];
        // Often enough for the compiler, which leaves the check to the processor from then on.
        for (int turn = 0; turn < 2_000_000; turn++) {
            sum += read(something);
        }
        new Thread(() -> run(words)).start();
        while (!ended) {
            try {
                sum += read(nothing);
            } catch (NullPointerException expected) {
                count[0]++;
            }
            for (int turn = 0; turn < 10_000; turn++) {
                sum += read(something);
            }
        }
        System.exit(0);
    }
}
